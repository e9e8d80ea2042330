// This process is one rank of a job that another launcher started, of which rank 0 serves the others,
// or a server that joins a run over the network.

#include <pthread.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "app/launch/endpoint.h"
#include "app/launch/exit_code.h"
#include "app/launch/failure_log.h"
#include "app/launch/launch_modes.h"
#include "app/launch/supervisor.h"

namespace engine::launch {
namespace {

// The server of the run, in a thread of rank 0. Throws std::system_error without a descriptor or
// thread.
class ServerThread {
 public:
  ServerThread(const LaunchPlan& plan, const LaunchOptions& options, MemberListener listener);
  ~ServerThread() {
    if (thread_.joinable()) thread_.join();
  }

  // Rank 0's own connection, once.
  kit::UniqueFd TakeConnection() { return std::move(own_); }
  // Waits until every rank has left, or has had its time.
  LaunchOutcome Finish();

 private:
  void Serve();

  Supervisor supervisor_;
  kit::UniqueFd own_;
  std::thread thread_;
};

ServerThread::ServerThread(const LaunchPlan& plan, const LaunchOptions& options,
                           MemberListener listener)
    : supervisor_(
          {.shape = {plan.info.world_size, plan.info.servers,
                     plan.info.one_host != 0 && (plan.info.servers == 0 || listener.loopback)},
           .job = plan.job,
           .place = plan.rendezvous,
           .options = options,
           .server = "rank 0",
           .replace = [left = plan.restarts](int /*rank*/) mutable -> std::string {
             if (left-- <= 0) return {};
             return "waits for another in its place";
           },
           .replaced_from_elsewhere = true,
           .min_ranks = plan.min_ranks}),
      own_(supervisor_.server().Connect()) {
  if (!own_) throw std::system_error(errno, std::generic_category(), "socketpair");
  supervisor_.server().Listen(std::move(listener));
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "store_server");
    Serve();
  });
}

// Rank 0 itself ends in its time, or is ended (RankProcess).
void ServerThread::Serve() {
  const auto done = [this] {
    return supervisor_.AllGone() ||
           (supervisor_.members().IsGone(0) && base::Passed(supervisor_.grace_end()));
  };
  while (!done()) supervisor_.Step(kJoinPollMs);
  supervisor_.server().Flush(kFlushMs);
  supervisor_.server().CloseAll();
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
      plan.alone() ? MemberListener{} : OpenListener(endpoint, plan.key_file);
  if (!listener.ok()) {
    const bool taken = listener.status().code() == StatusCode::kRendezvous;
    if (taken) TellOtherRun(plan, endpoint, identity, process.abort());
    return Failed(listener.status());
  }
  ServerThread server(plan, options, std::move(*listener));
  // Its own server tells it when the rendezvous fails.
  (void)process.Run(server.TakeConnection(), identity, body);
  return server.Finish();
}

// A member of a run whose store is elsewhere: a rank but rank 0, or a server.
LaunchOutcome JoinElsewhere(const LaunchPlan& plan, const LaunchOptions& options,
                            const Endpoint& endpoint, StoreClient::Identity identity,
                            RankProcess& process, const RankBody& body) {
  const bool server = plan.info.is_server != 0;
  // Rank 0 makes the key before it listens, if there is none; a server has it from the run.
  Status status = server ? LoadKey(plan, &identity) : Status();
  if (!status.ok()) return Failed(status);
  Result<kit::UniqueFd> socket =
      ConnectTo(endpoint, base::DeadlineIn(options.rendezvous_timeout_ms), process.abort(),
                server ? EndpointLabels{"run", "HOST:PORT"} : EndpointLabels{});
  status = socket.status();
  if (socket.ok()) {
    status = LoadKey(plan, &identity);
    if (!status.ok()) return Failed(status);
    status = process.Run(std::move(*socket), identity, body);
  }
  if (status.ok()) return {};
  // As the store knows it, if it does: all members say the same of one run.
  const Status cause = process.cause();
  FailureLog failures;
  if (!cause.ok()) failures.AddReport(base::kNobody, cause);
  failures.AddReport(identity.member, status);
  LaunchOutcome outcome = failures.Outcome(process.stop_requested());
  // Before it is one of the members nobody else is to blame.
  if (server && status.code() == StatusCode::kRendezvous) outcome.status = status;
  return outcome;
}

}  // namespace

Result<MemberListener> OpenListener(const Endpoint& endpoint, const std::string& key_file,
                                    const EndpointLabels& labels) {
  MemberListener listener;
  ENGINE_ASSIGN_OR_RETURN(listener.loopback, IsLoopback(endpoint));
  if (!key_file.empty()) {
    ENGINE_ASSIGN_OR_RETURN(listener.key, ServerKey::LoadOrCreate(key_file));
  }
  ENGINE_ASSIGN_OR_RETURN(listener.socket, ListenAt(endpoint, labels));
  return listener;
}

LaunchOutcome LaunchJoined(const LaunchPlan& plan, const LaunchOptions& options,
                           const Endpoint& endpoint, const RankBody& body) {
  const bool server = plan.info.is_server != 0;
  const StopSignals signals;
  RankProcess process(plan.info, signals, RankProcess::SecondSignal::kDie, options);
  if (!server && plan.info.rank == 0) return JoinAsRankZero(plan, options, endpoint, process, body);
  const StoreClient::Identity identity{
      base::MemberOf(plan.info), server ? 0 : plan.info.world_size, plan.job,
      (server ? "the run at " : "rank 0 at ") + endpoint.text, server ? base::kNobody : 0};
  return JoinElsewhere(plan, options, endpoint, identity, process, body);
}

}  // namespace engine::launch
