// The communicator of a member of the run that trains nothing and serves the ranks.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>

#include "engine/communicator.h"
#include "engine/ext/parameter_server.h"
#include "engine/host.h"
#include "server.h"
#include "settings.h"

namespace engine::zmq_ps {

class ServerMember final : public Communicator, public ParameterServer {
 public:
  // Collective: waits for the ranks. Throws std::bad_alloc.
  static Result<std::unique_ptr<ServerMember>> Create(Host& host,
                                                      const CommunicatorSettings& settings);

  void* Query(std::string_view id) noexcept override;
  CommunicatorTraits traits() const noexcept override { return {}; }
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override;

  Status Serve(Optimizer& optimizer) noexcept override;

 private:
  explicit ServerMember(Host& host) : host_(host), ranks_(host.rank_info()) {}
  Status Start(const CommunicatorSettings& settings);

  Host& host_;
  const RankInfo ranks_;
  bool updates_ = false;  // constant after Start

  std::mutex mutex_;
  std::shared_ptr<Server> server_;  // these guarded by mutex_; null after Serve
  bool served_ = false;
  Status abort_reason_;
};

}  // namespace engine::zmq_ps
