#include "server_member.h"

#include <string_view>
#include <utility>

namespace engine::zmq_ps {
namespace {

// For ranks that still fetch their last answers, or the reason of an end.
constexpr int64_t kDrainMs = 2000;

}  // namespace

Result<std::unique_ptr<ServerMember>> ServerMember::Create(Host& host,
                                                           const CommunicatorSettings& settings) {
  std::unique_ptr<ServerMember> member(new ServerMember(host));
  ENGINE_RETURN_IF_ERROR(member->Start(settings));
  return member;
}

Status ServerMember::Start(const CommunicatorSettings& settings) {
  Rendezvous rendezvous(host_, settings.rendezvous);
  ServerSettings server = ServerSettingsOf(settings, host_);
  updates_ = server.update.has_value();
  ENGINE_RETURN_IF_ERROR(rendezvous.Meet(&server));
  ENGINE_ASSIGN_OR_RETURN(server_, Server::Start(std::move(server)));
  return rendezvous.Publish(*server_);
}

void* ServerMember::Query(std::string_view id) noexcept {
  return id == kParameterServerId ? static_cast<ParameterServer*>(this) : nullptr;
}

Status ServerMember::Submit(const Transfer&, Work**) noexcept {
  return Status::Error(StatusCode::kUnsupported, "server %d is no rank and moves nothing itself",
                       ranks_.rank);
}

void ServerMember::Abort(const Status& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!abort_reason_.ok()) return;
  abort_reason_ = reason;
  if (!server_) return;
  server_->Fail(Status::Error(StatusCode::kPeerLost, "server %d was stopped: %s", ranks_.rank,
                              reason.message())
                    .WithRank(ServerId(ranks_.rank)));
}

// Abort may come at any time, also before Serve and after its end: server_ is shared with it under
// mutex_, and is gone when Serve returns, because the optimizer may be gone then.
Status ServerMember::Serve(Optimizer& optimizer) noexcept {
  std::shared_ptr<Server> server;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(served_, true)) {
      return Status::Error(StatusCode::kInvalidArgument, "a server serves once only");
    }
    server = server_;
  }
  if (updates_) server->Serve(optimizer);
  const Status end = server->WaitForEnd();
  server->Stop(kDrainMs);
  const std::lock_guard lock(mutex_);
  server_.reset();
  server.reset();  // nothing uses the optimizer from here on
  return abort_reason_.ok() ? end : abort_reason_;
}

}  // namespace engine::zmq_ps
