#include "server_member.h"

#include <utility>

namespace engine::zmq_ps {

Result<std::unique_ptr<ServerMember>> ServerMember::Create(Host& host,
                                                           const CommunicatorSettings& settings) {
  std::unique_ptr<ServerMember> member(new ServerMember(host));
  Rendezvous rendezvous(host, settings);
  ENGINE_ASSIGN_OR_RETURN(ServerSettings server, rendezvous.Meet());
  ENGINE_ASSIGN_OR_RETURN(member->server_, Server::Start(std::move(server)));
  ENGINE_RETURN_IF_ERROR(rendezvous.Publish(member->server_.get()));
  return member;
}

void* ServerMember::Query(std::string_view id) noexcept {
  return Offer<ParameterServer>(id, this);
}

Status ServerMember::Submit(const Transfer&, Work**) noexcept {
  return Status::Error(StatusCode::kUnsupported, "server %d is no rank and moves nothing itself",
                       ranks_.rank);
}

void ServerMember::TellRanks(const Status& reason) noexcept {
  server_->Fail(Status::Error(StatusCode::kPeerLost, "server %d was stopped: %s", ranks_.rank,
                              reason.message())
                    .WithRank(ServerId(ranks_.rank)));
}

// Abort may come at any time, also before this and after it: the server is there as long as the
// member is, but after Stop none of its threads uses the optimizer, which may be gone then.
Status ServerMember::Serve(Optimizer& optimizer) noexcept {
  if (served_.exchange(true)) {
    return Status::Error(StatusCode::kInvalidArgument, "a server serves once only");
  }
  server_->Serve(optimizer);
  const Status end = server_->WaitForEnd();
  server_->Stop(DrainMs(!end.ok() || failure_.raised()));
  return failure_.raised() ? failure_.reason() : end;
}

}  // namespace engine::zmq_ps
