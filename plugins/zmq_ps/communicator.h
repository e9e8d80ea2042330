// The Communicator of a rank, which may host a parameter server itself.
#pragma once

#include <memory>

#include "engine/communicator.h"
#include "engine/ext/link_cost.h"
#include "engine/host.h"
#include "parameter_client.h"
#include "server.h"
#include "settings.h"
#include "work.h"
#include "worker.h"

namespace engine::zmq_ps {

class ZmqPsCommunicator final : public Communicator {
 public:
  // Collective unless the world is one and has no servers.
  static Result<std::unique_ptr<ZmqPsCommunicator>> Create(
      Host& host, const CommunicatorSettings& settings) noexcept;
  ~ZmqPsCommunicator() override;

  void* Query(std::string_view id) noexcept override;
  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override;

 private:
  ZmqPsCommunicator(Host& host, const CommunicatorSettings& settings);
  Status Connect(const CommunicatorSettings& settings);
  Status Check(const Transfer& transfer) const noexcept;
  void ReportBalance() noexcept;

  Host& host_;
  const RankInfo ranks_;
  const std::optional<ParameterTraits> update_;  // null: ranks update
  const bool ordered_;
  LinkCost link_cost_;
  const std::shared_ptr<WorkPool> pool_;
  std::unique_ptr<Server> server_;                // null where another rank hosts it
  std::unique_ptr<Worker> worker_;                // null in a world of one without servers
  std::unique_ptr<ServedParameters> parameters_;  // null when ranks update

  mutable std::mutex mutex_;
  Status abort_reason_;  // guarded by mutex_; of a world of one
};

}  // namespace engine::zmq_ps
