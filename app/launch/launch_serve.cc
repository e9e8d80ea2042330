// Servers that join a run over the network: the listener of the run, and a server that joins.

#include <string>
#include <utility>

#include "app/launch/exit_code.h"
#include "app/launch/failure_log.h"
#include "app/launch/launch_modes.h"
#include "app/launch/member.h"

namespace engine::launch {
namespace {

LaunchOutcome Failed(const Status& status) {
  return {status, ExitCode(status.code())};
}

}  // namespace

Result<ServerListener> OpenServerListener(const std::string& address, const std::string& key_file,
                                          const EndpointLabels& labels) {
  ServerListener listener;
  ENGINE_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(address));
  ENGINE_ASSIGN_OR_RETURN(listener.loopback, IsLoopback(endpoint));
  if (!key_file.empty()) {
    ENGINE_ASSIGN_OR_RETURN(listener.key, ServerKey::LoadOrCreate(key_file));
  } else if (!listener.loopback) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "other hosts can reach %s, so servers that join there need a key: give "
                         "--key-file FILE here and a copy of that file to each engine serve",
                         address.c_str());
  }
  ENGINE_ASSIGN_OR_RETURN(listener.socket, ListenAt(endpoint, labels));
  return listener;
}

LaunchOutcome LaunchServing(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body) {
  constexpr EndpointLabels kLabels{"run", "HOST:PORT"};
  const Result<Endpoint> endpoint = ParseEndpoint(plan.rendezvous);
  if (!endpoint.ok()) return Failed(endpoint.status());
  const int member = base::MemberOf(plan.info);
  StoreClient::Identity identity{member, 0, {}, "the run at " + endpoint->text, base::kNobody};
  if (!plan.key_file.empty()) {
    Result<ServerKey> key = ServerKey::Load(plan.key_file);
    if (!key.ok()) return Failed(key.status());
    identity.key = std::move(*key);
  }
  StopSignals signals;
  RankProcess process(plan.info, signals, RankProcess::SecondSignal::kDie);
  const base::TimePoint deadline = base::DeadlineIn(options.rendezvous_timeout_ms);
  Result<base::UniqueFd> socket = ConnectTo(*endpoint, deadline, process.abort(), kLabels);
  if (!socket.ok()) return Failed(socket.status());
  Status status = process.Run(std::move(*socket), identity,
                              options.rendezvous_timeout_ms + kRendezvousGraceMs, body);
  if (status.ok()) return {};
  const Status cause = process.cause();
  if (!cause.ok() && base::IsSecondary(status.code())) return Failed(cause);
  // Before it is one of the members nobody else is to blame.
  if (status.code() == StatusCode::kRendezvous) return Failed(status);
  FailureLog failures;
  failures.AddReport(member, status);
  return failures.Outcome(process.stop_requested());
}

}  // namespace engine::launch
