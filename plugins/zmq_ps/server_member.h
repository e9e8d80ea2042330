// The communicator of a member of the run that trains nothing and serves the ranks.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>

#include "engine/communicator.h"
#include "engine/ext/parameter_server.h"
#include "engine/host.h"
#include "kit/failure.h"
#include "rendezvous.h"
#include "server.h"

namespace engine::zmq_ps {

class ServerMember final : public CommunicatorBase, public ParameterServerBase {
 public:
  // Collective: waits for the ranks. Throws std::bad_alloc.
  static Result<std::unique_ptr<ServerMember>> Create(Host& host,
                                                      const CommunicatorSettings& settings);

  void* Query(std::string_view id) noexcept override;
  CommunicatorTraits traits() const noexcept override { return {}; }
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

  Status Serve(Optimizer& optimizer) noexcept override;

 private:
  void TellRanks(const Status& reason) noexcept;
  explicit ServerMember(Host& host) : ranks_(host.rank_info()) {}

  const RankInfo ranks_;
  std::unique_ptr<Server> server_;  // constant once the member is made
  std::atomic<bool> served_{false};
  kit::Failure failure_{[this](const Status& reason, bool) { TellRanks(reason); }};
};

}  // namespace engine::zmq_ps
