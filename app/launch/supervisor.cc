// A member goes absent -> joined -> left or lost, and back to absent only through Expect. The first
// failure that the run does not survive ends it: from then on nobody is welcomed, replaced or
// reported as lost, and only the record of who failed of what still grows.

#include "app/launch/supervisor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "app/launch/deadlines.h"

namespace engine::launch {
namespace {

template <typename... Values>
Status Refuse(const char* format, Values... values) {
  return Status::Error(StatusCode::kRendezvous, format, values...);
}

Status TwoProcesses(const Supervisor::Settings& settings, int member) {
  const bool server = base::IsServer(member);
  return Refuse("two processes say that they are %s of the run at %s: give every %s",
                base::MemberName(member).c_str(), settings.place.c_str(),
                server ? "server its own --index"
                       : "process its own rank, and every run an address or a run id of its own");
}

Status CheckServer(const Supervisor::Settings& settings, int server) {
  const int servers = settings.shape.servers;
  if (servers == 0) {
    return Refuse("the run at %s has no servers: start it with --servers", settings.place.c_str());
  }
  if (server < servers) return {};
  return Refuse("there is no server %d in a run with %d servers: --index goes from 0 to %d", server,
                servers, servers - 1);
}

Status CheckRank(const Supervisor::Settings& settings, const Message& hello, bool adopted) {
  const int ranks = settings.shape.world_size;
  if (!adopted && !settings.ranks_may_connect) {
    return Refuse("the ranks of the run at %s are its own processes: only servers may join",
                  settings.place.c_str());
  }
  if (hello.number != ranks) {
    return Refuse(
        "rank %d was started as one of %d ranks but rank 0 as one of %d: start every rank with the "
        "same number of ranks",
        hello.rank, hello.number, ranks);
  }
  if (settings.shape.Has(hello.rank)) return {};
  return Refuse("there is no rank %d among %d ranks", hello.rank, ranks);
}

Message WelcomeTo(const RunShape& shape) {
  return {.kind = MessageKind::kWelcome,
          .id = static_cast<uint32_t>(shape.servers),
          .rank = shape.one_host ? 1 : 0,
          .number = shape.world_size};
}

}  // namespace

Supervisor::Supervisor(Settings settings)
    : settings_(std::move(settings)),
      rendezvous_deadline_(base::DeadlineIn(settings_.rendezvous_timeout_ms)),
      server_(*this),
      phases_(settings_.shape.members(), Phase::kAbsent) {}

void Supervisor::Notice(const std::string& sentence) const {
  if (settings_.notice) settings_.notice(sentence);
}

void Supervisor::Tick() {
  if (failed_) return;
  if (!complete_) {
    if (!base::Passed(rendezvous_deadline_)) return;
    const bool servers_come = settings_.shape.servers > 0;
    return Fail(base::kNobody,
                Status::Error(StatusCode::kRendezvous,
                              "%s did not join at %s within %lld ms: check that every rank%s was "
                              "started and can reach this address%s",
                              List(Phase::kAbsent).c_str(), settings_.place.c_str(),
                              static_cast<long long>(settings_.rendezvous_timeout_ms),
                              servers_come ? " and server" : "", last_refusal_.c_str()));
  }
  const bool ranks_gone = std::all_of(phases_.begin(), phases_.begin() + settings_.shape.world_size,
                                      [](Phase phase) { return phase >= Phase::kLeft; });
  ReportSecondaryFailures(ranks_gone);
  if (failed_ || !ranks_gone) return;
  if (!ranks_gone_) {
    ranks_gone_ = true;
    servers_deadline_ = base::DeadlineIn(settings_.server_leave_ms);
    server_.Put(kRanksLeftKey, "");
  }
  for (int i = 0; i < settings_.shape.servers && base::Passed(servers_deadline_); ++i) {
    if (IsGone(ServerId(i))) continue;
    return Fail(ServerId(i), Status::Error(StatusCode::kTimeout,
                                           "it did not leave within %lld ms after the last rank",
                                           static_cast<long long>(settings_.server_leave_ms)));
  }
}

void Supervisor::Fail(int member, const Status& status) {
  failures_.AddReport(member, status);
  // After a request to stop, kInterrupted is how a member leaves; the others finish their step.
  if (status.code() == StatusCode::kInterrupted && stop_signal_ != 0) return;
  End(status.rank() != base::kNobody ? status : status.WithRank(member));
}

void Supervisor::End(const Status& cause) {
  if (failed_) return;
  failed_ = true;
  failed_at_ = std::chrono::steady_clock::now();
  server_.Abort(cause);
}

void Supervisor::Stop(int signal) {
  if (stop_signal_ != 0) return;
  stop_signal_ = signal;
  server_.Broadcast({.kind = MessageKind::kStop, .number = signal});
}

void Supervisor::Expect(int rank) {
  server_.Forget(rank);
  phases_[settings_.shape.Index(rank)] = Phase::kAbsent;
}

bool Supervisor::AllGone() const {
  return (complete_ || failed_ || stop_signal_ != 0) && !SomebodyIsThere();
}

Status Supervisor::OnHello(const Message& hello, bool adopted) {
  const bool server = base::IsServer(hello.rank);
  // A server from elsewhere cannot know the job.
  if (hello.key != settings_.job && !(server && hello.key.empty())) {
    return Status::Error(StatusCode::kRendezvous,
                         "another run is using %s: choose another address with --rendezvous",
                         settings_.place.c_str());
  }
  Status refusal = server ? CheckServer(settings_, ServerOfId(hello.rank))
                          : CheckRank(settings_, hello, adopted);
  const bool welcome = refusal.ok() && hello.id == kProtocolVersion;
  // Rank 0 serves the others, and comes in another way.
  const bool taken =
      welcome && (phase(hello.rank) != Phase::kAbsent || (hello.rank == 0 && !adopted));
  if (hello.id != kProtocolVersion) {
    refusal = Refuse(
        "%s speaks version %u of the rendezvous protocol and the run version %u: start all members "
        "from the same build",
        base::MemberName(hello.rank).c_str(), hello.id, kProtocolVersion);
  } else if (taken) {
    refusal = TwoProcesses(settings_, hello.rank);
  }
  // What is said over the network ends nothing, but for a second process of one job and rank: two
  // runs have met, and nobody knows whose ranks are here.
  const bool two_runs = taken && !server && !IsGone(hello.rank) && !base::Passed(two_runs_until_);
  if (!refusal.ok() && (adopted ? !complete_ : two_runs)) Fail(base::kNobody, refusal);
  return refusal;
}

void Supervisor::OnJoined(int member) {
  phases_[settings_.shape.Index(member)] = Phase::kJoined;
  if (stop_signal_ != 0) server_.Send(member, {.kind = MessageKind::kStop, .number = stop_signal_});
  if (failed_) return;
  if (complete_)
    return server_.Send(member, WelcomeTo(settings_.shape));  // it takes the place of a lost one
  if (std::ranges::count(phases_, Phase::kAbsent) > 0) return;
  complete_ = true;
  two_runs_until_ = base::DeadlineIn(kTwoRunsMs);
  server_.Broadcast(WelcomeTo(settings_.shape));
}

void Supervisor::OnAllowLosses(int member) {
  if (!base::IsServer(member)) losses_allowed_ = true;
}

void Supervisor::OnFail(int member, const Status& status) {
  const bool asked = status.code() == StatusCode::kInterrupted && stop_signal_ != 0;
  if (!Survives(member) || asked) return Fail(member, status);
  if (IsGone(member)) return;  // it has been heard already
  phases_[settings_.shape.Index(member)] = Phase::kLost;
  if (!base::IsSecondary(status.code())) return Lose(member, status);
  secondary_failures_.push_back({member, status, base::DeadlineIn(kSecondaryFailureMs)});
}

void Supervisor::OnBye(int member) {
  if (phase(member) != Phase::kLost) phases_[settings_.shape.Index(member)] = Phase::kLeft;
}

void Supervisor::OnLost(int member) {
  if (IsGone(member)) return;
  phases_[settings_.shape.Index(member)] = Phase::kLost;
  const Loss loss = settings_.explain_loss(member);
  if (Survives(member)) return Lose(member, loss.status);
  if (loss.primary) {
    failures_.AddLoss(member, loss.status, loss.exit_code);
  } else {
    failures_.AddReport(member, loss.status);
  }
  End(loss.status.WithRank(member));
}

void Supervisor::Lose(int rank, const Status& status) {
  std::string next;
  if (settings_.replace) next = settings_.replace(rank);
  if (next.empty()) next = "the run goes on without it";
  Notice(base::MemberName(rank) + ": " + status.message() + "; " + next);
}

// A rank that failed because of a server or of rank 0 is no loss of its own when that one is the
// end of the run.
void Supervisor::ReportSecondaryFailures(bool all) {
  std::vector<SecondaryFailure> later;
  for (SecondaryFailure& failure : std::exchange(secondary_failures_, {})) {
    if (all || base::Passed(failure.due)) {
      Lose(failure.rank, failure.status);
    } else {
      later.push_back(std::move(failure));
    }
  }
  secondary_failures_ = std::move(later);
}

// At most one line a second, however many connect.
void Supervisor::OnRefusedConnection(const std::string& address, const std::string& why) {
  if (!complete_) last_refusal_ = " (the last one refused was " + address + ": " + why + ")";
  if (!base::Passed(next_refusal_line_at_)) {
    ++unreported_refusals_;
    return;
  }
  next_refusal_line_at_ = base::DeadlineIn(kRefusalLineMs);
  std::string line = "refused a connection from " + address + ": " + why;
  if (unreported_refusals_ > 0) {
    line += " (and " + std::to_string(unreported_refusals_) + " others since the last line)";
  }
  unreported_refusals_ = 0;
  Notice(line);
}

void Supervisor::OnNoDescriptor() {
  if (complete_) return;  // only those that are not needed come now
  Fail(base::kNobody, Status::Error(StatusCode::kResourceExhausted,
                                    "no descriptor is left to let %s in: raise the limit of open "
                                    "files of this process (ulimit -n)",
                                    List(Phase::kAbsent).c_str()));
}

std::string Supervisor::List(Phase wanted) const {
  std::string names[2];
  int counts[2] = {};
  for (size_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i] != wanted) continue;
    const int member = settings_.shape.At(static_cast<int>(i));
    const bool server = base::IsServer(member);
    names[server] += counts[server]++ > 0 ? ", " : "";
    names[server] += std::to_string(server ? ServerOfId(member) : member);
  }
  std::string text;
  constexpr const char* kKinds[] = {"rank", "server"};
  for (int kind : {0, 1}) {
    if (counts[kind] == 0) continue;
    text += text.empty() ? "" : " and ";
    text += std::string(kKinds[kind]) + (counts[kind] == 1 ? " " : "s ") + names[kind];
  }
  return text;
}

}  // namespace engine::launch
