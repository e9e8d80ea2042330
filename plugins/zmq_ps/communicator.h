// The Communicator of a rank, which may host a parameter server itself.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "engine/communicator.h"
#include "engine/ext/link_cost.h"
#include "engine/host.h"
#include "kit/failure.h"
#include "parameter_client.h"
#include "rendezvous.h"
#include "server.h"
#include "work.h"
#include "worker.h"

namespace engine::zmq_ps {

class ZmqPsCommunicator final : public CommunicatorBase, LinkModelBase {
 public:
  // Collective unless the world is one and has no servers. Throws std::bad_alloc.
  static Result<std::unique_ptr<ZmqPsCommunicator>> Create(Host& host,
                                                           const CommunicatorSettings& settings);
  ~ZmqPsCommunicator() override;

  void* Query(std::string_view id) noexcept override;
  LinkCost cost() const noexcept override { return link_cost_; }
  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override;

 private:
  ZmqPsCommunicator(Host& host, const CommunicatorSettings& settings);
  Status Connect(const CommunicatorSettings& settings);
  Status Check(const Transfer& transfer) const noexcept;

  Host& host_;
  const RankInfo ranks_;
  const std::optional<ParameterTraits> update_;  // null: ranks update
  LinkCost link_cost_;
  Works works_;
  std::unique_ptr<Server> server_;                // null where another rank hosts it
  std::unique_ptr<Worker> worker_;                // null in a world of one without servers
  std::unique_ptr<ServedParameters> parameters_;  // null when ranks update
  kit::Failure alone_failed_;                     // where there is no worker
};

}  // namespace engine::zmq_ps
