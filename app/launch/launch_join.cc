// This process is one rank of a job that another launcher started, of which rank 0 serves the others,
// or a server that joins a run over the network.

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "app/launch/endpoint.h"
#include "app/launch/exit_code.h"
#include "app/launch/failure_log.h"
#include "app/launch/launch_modes.h"
#include "app/launch/supervisor.h"

namespace engine::launch {
namespace {

// The server of the run, in a thread of rank 0.
class ServerThread {
 public:
  ServerThread(const LaunchPlan& plan, const LaunchOptions& options, MemberListener listener,
               kit::UniqueFd own_rank);
  ~ServerThread() {
    if (thread_.joinable()) thread_.join();
  }

  // Waits until every rank has left, or has had its time.
  LaunchOutcome Finish();

 private:
  void Serve();
  bool Done();

  const LaunchOptions& options_;
  Supervisor supervisor_;
  std::thread thread_;
};

ServerThread::ServerThread(const LaunchPlan& plan, const LaunchOptions& options,
                           MemberListener listener, kit::UniqueFd own_rank)
    : options_(options),
      supervisor_(
          {.shape = {plan.info.world_size, plan.info.servers,
                     plan.info.one_host != 0 && (plan.info.servers == 0 || listener.loopback)},
           .job = plan.job,
           .place = plan.rendezvous,
           .options = options,
           .explain_loss = [](int) {
             return Supervisor::Loss{
                 Status::Error(StatusCode::kPeerLost,
                               "its connection to rank 0 ended without a result"),
                 ExitCode(StatusCode::kPeerLost)};
           }}) {
  if (listener.socket) supervisor_.server().Listen(std::move(listener.socket));
  if (listener.key) supervisor_.server().RequireProof(std::move(*listener.key));
  supervisor_.server().Adopt(std::move(own_rank));
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "store_server");
    Serve();
  });
}

void ServerThread::Serve() {
  std::vector<pollfd> fds;
  while (!Done()) {
    fds.clear();
    supervisor_.server().AddPollFds(&fds);
    poll(fds.data(), fds.size(), kJoinPollMs);
    supervisor_.server().Handle();
    supervisor_.Tick();
  }
  supervisor_.server().Flush(kFlushMs);
  supervisor_.server().CloseAll();
}

// Rank 0 itself ends in its time, or is ended (RankProcess).
bool ServerThread::Done() {
  if (supervisor_.AllGone()) return true;
  return supervisor_.failed() && supervisor_.members().IsGone(0) &&
         base::Passed(supervisor_.failed_at() + std::chrono::milliseconds(options_.grace_ms));
}

LaunchOutcome ServerThread::Finish() {
  thread_.join();
  return supervisor_.Outcome();
}

// The key of the run, for a member that has to prove itself.
Status LoadKey(const LaunchPlan& plan, StoreClient::Identity* identity) {
  if (plan.key_file.empty() || identity->key) return {};
  Result<ServerKey> key = ServerKey::Load(plan.key_file);
  if (key.ok()) identity->key = std::move(*key);
  return key.status();
}

// Whoever listens in the place of rank 0 may be rank 0 of another run that was started at the same
// time, and take ranks of this one for its own: it is told, so that neither goes on with them.
void TellOtherRun(const LaunchPlan& plan, const Endpoint& endpoint, StoreClient::Identity identity,
                  const base::AbortSignal& cancel) {
  if (!LoadKey(plan, &identity).ok()) return;
  const base::TimePoint deadline = base::DeadlineIn(kReportTimeoutMs);
  Result<kit::UniqueFd> socket = ConnectTo(endpoint, deadline, cancel);
  if (!socket.ok()) return;
  base::AbortSignal unused;
  StoreClient client(std::move(*socket), identity, unused, [](int, bool) {});
  (void)client.Join(deadline);  // it is refused
}

LaunchOutcome JoinAsRankZero(const LaunchPlan& plan, const LaunchOptions& options,
                             const Endpoint& endpoint, RankProcess& process, const RankBody& body) {
  StoreClient::Identity identity{0, plan.info.world_size, plan.job, "the store of rank 0", 0};
  Result<MemberListener> listener =
      plan.alone() ? MemberListener{} : OpenListener(plan.rendezvous, plan.key_file);
  if (!listener.ok()) {
    const bool taken = listener.status().code() == StatusCode::kRendezvous;
    if (taken) TellOtherRun(plan, endpoint, identity, process.abort());
    return Failed(listener.status());
  }
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  kit::UniqueFd own(pair[0]);
  ServerThread server(plan, options, std::move(*listener), kit::UniqueFd(pair[1]));
  // Its own server tells it when the rendezvous fails.
  (void)process.Run(std::move(own), identity, options.rendezvous_timeout_ms + kRendezvousGraceMs,
                    body);
  return server.Finish();
}

// A member of a run whose store is elsewhere: a rank but rank 0, or a server.
LaunchOutcome JoinElsewhere(const LaunchPlan& plan, const LaunchOptions& options,
                            const Endpoint& endpoint, const EndpointLabels& labels,
                            StoreClient::Identity identity, RankProcess& process,
                            const RankBody& body) {
  const bool server = plan.info.is_server != 0;
  const base::TimePoint deadline = base::DeadlineIn(options.rendezvous_timeout_ms);
  Result<kit::UniqueFd> socket = ConnectTo(endpoint, deadline, process.abort(), labels);
  if (socket.ok()) {
    // Rank 0 listens, so it has made the file if there was none.
    if (const Status key = LoadKey(plan, &identity); !key.ok()) return Failed(key);
  }
  const Status status = socket.ok()
                            ? process.Run(std::move(*socket), identity,
                                          options.rendezvous_timeout_ms + kRendezvousGraceMs, body)
                            : socket.status();
  if (status.ok()) return {};
  const Status cause = process.cause();
  const bool of_another = !cause.ok() && base::IsSecondary(status.code());
  FailureLog failures;
  failures.AddReport(identity.member, of_another ? cause : status);
  LaunchOutcome outcome = failures.Outcome(process.stop_requested());
  if (of_another) {
    outcome.status = AbortReason(cause).WithRank(identity.member);
  } else if (server && status.code() == StatusCode::kRendezvous) {
    outcome.status = status;  // before it is one of the members nobody else is to blame
  }
  return outcome;
}

}  // namespace

Result<MemberListener> OpenListener(const std::string& address, const std::string& key_file,
                                    const EndpointLabels& labels) {
  MemberListener listener;
  ENGINE_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(address));
  ENGINE_ASSIGN_OR_RETURN(listener.loopback, IsLoopback(endpoint));
  if (!key_file.empty()) {
    ENGINE_ASSIGN_OR_RETURN(listener.key, ServerKey::LoadOrCreate(key_file));
  }
  ENGINE_ASSIGN_OR_RETURN(listener.socket, ListenAt(endpoint, labels));
  return listener;
}

LaunchOutcome LaunchJoined(const LaunchPlan& plan, const LaunchOptions& options,
                           const RankBody& body) {
  const Result<Endpoint> endpoint = ParseEndpoint(plan.rendezvous);
  if (!endpoint.ok()) return Failed(endpoint.status());
  const StopSignals signals;
  RankProcess process(plan.info, signals, RankProcess::SecondSignal::kDie, options);
  if (plan.info.rank == 0) return JoinAsRankZero(plan, options, *endpoint, process, body);
  return JoinElsewhere(
      plan, options, *endpoint, {},
      {plan.info.rank, plan.info.world_size, plan.job, "rank 0 at " + endpoint->text, 0}, process,
      body);
}

LaunchOutcome LaunchServing(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body) {
  const Result<Endpoint> endpoint = ParseEndpoint(plan.rendezvous);
  if (!endpoint.ok()) return Failed(endpoint.status());
  StoreClient::Identity identity{
      base::MemberOf(plan.info), 0, {}, "the run at " + endpoint->text, base::kNobody};
  if (const Status key = LoadKey(plan, &identity); !key.ok()) return Failed(key);
  const StopSignals signals;
  RankProcess process(plan.info, signals, RankProcess::SecondSignal::kDie, options);
  return JoinElsewhere(plan, options, *endpoint, {"run", "HOST:PORT"}, identity, process, body);
}

}  // namespace engine::launch
