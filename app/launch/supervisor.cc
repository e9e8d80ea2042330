// A member goes absent -> joined -> left or lost, and back to absent only through Expect. The first
// failure that the run does not survive ends it: from then on nobody is welcomed, replaced or
// reported as lost, and only the record of who failed of what still grows.

#include "app/launch/supervisor.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "app/launch/deadlines.h"
#include "app/launch/stop_signals.h"

namespace engine::launch {
namespace {

// Why the member of `hello` is none of this run, or "".
std::string RefusalOf(const Supervisor::Settings& settings, const Message& hello, bool adopted) {
  const auto& [ranks, servers, one_host, left] = settings.shape;
  const bool server = base::IsServer(hello.rank);
  const int index = ServerOfId(hello.rank);
  const std::string name = base::MemberName(hello.rank);
  const std::pair<bool, std::string> cases[] = {
      {hello.id != kProtocolVersion,
       fmt::format("{} speaks version {} of the rendezvous protocol and the run version {}: start "
                   "all members from the same build",
                   name, hello.id, kProtocolVersion)},
      {server && servers == 0,
       fmt::format("the run at {} has no servers: start it with --servers", settings.place)},
      {server && index >= servers,
       fmt::format("there is no server {} in a run with {} servers: --index goes from 0 to {}",
                   index, servers, servers - 1)},
      {!server && !adopted && !settings.ranks_may_connect,
       fmt::format("the ranks of the run at {} are its own processes: only servers may join",
                   settings.place)},
      {!server && hello.number != ranks,
       fmt::format("{} was started as one of {} ranks but rank 0 as one of {}: start every rank "
                   "with the same number of ranks",
                   name, hello.number, ranks)},
      {!settings.shape.Has(hello.rank), fmt::format("there is no {} among {} ranks", name, ranks)}};
  const auto refused = std::ranges::find_if(cases, [](const auto& one) { return one.first; });
  return refused == std::end(cases) ? "" : refused->second;
}

std::string Missing(const Supervisor::Settings& settings, const std::string& absent,
                    const std::string& last_refusal) {
  return fmt::format(
      "{} did not join at {} within {} ms: check that every rank{} was started and can reach this "
      "address{}",
      absent, settings.place, settings.options.rendezvous_timeout_ms,
      settings.shape.servers > 0 ? " and server" : "", last_refusal);
}

Status Refusal(const std::string& sentence) {
  return Status::Error(StatusCode::kRendezvous, "%s", sentence.c_str());
}

Message Ping(const LaunchOptions& options) {
  const int64_t limit_ms = std::min<int64_t>(options.liveness_timeout_ms, INT32_MAX);
  return {.kind = MessageKind::kPing, .number = static_cast<int32_t>(limit_ms)};
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
      rendezvous_deadline_(base::DeadlineIn(settings_.options.rendezvous_timeout_ms)),
      server_(*this),
      members_(settings_.shape) {}

void Supervisor::Notice(const std::string& sentence) const {
  if (settings_.options.notice) settings_.options.notice(sentence);
}

void Supervisor::Step(int timeout_ms, int wake) {
  pollfd fds[] = {{server_.fd(), POLLIN, 0}, {wake, POLLIN, 0}};
  poll(fds, std::size(fds), timeout_ms);
  server_.Handle();
  Tick();
}

// Both ways at the same times: a ping, and a look at who has answered none; also after a failure:
// members that have not ended still hear of us and stay connected, and nobody waits for ranks behind
// a link that is cut.
void Supervisor::Tick() {
  const LaunchOptions& options = settings_.options;
  if (options.liveness_timeout_ms > 0 && base::Passed(next_look_)) {
    next_look_ = base::DeadlineIn(kPingMs);
    server_.Broadcast(Ping(options));
    LoseSilent(options.liveness_timeout_ms, base::kNobody);
  }
  if (failed_) return;
  for (const int rank : std::exchange(replaceable_, {})) Expect(rank);
  // Until all that are left begin again, or nobody comes in the place of who is missing.
  for (const int rank : regroup_deadline_ ? members_.Missing() : std::vector<int>()) {
    if (!base::Passed(*regroup_deadline_)) break;
    if (!members_.IsAbsent(rank) || !members_.Drop(rank, settings_.min_ranks)) {
      return Fail(base::kNobody, Refusal(fmt::format(
                                     "{} did not begin again within {} ms after the loss of a rank",
                                     base::MemberName(rank), options.rendezvous_timeout_ms)));
    }
    Notice(base::MemberName(rank) + ": nobody took its place in time; the run goes on without it");
  }
  if (regroup_deadline_ && members_.Missing().empty()) {
    regroup_deadline_.reset();
    Message welcome = WelcomeTo(settings_.shape);
    welcome.value = fmt::format("{}", fmt::join(members_.BeginAgain(), " "));
    server_.Clear();
    server_.Put(kRegroupedKey, "");
    server_.Broadcast(welcome);
  }
  if (base::Passed(leave_deadline_)) EndLate();
  if (!complete_ && !failed_ && base::Passed(rendezvous_deadline_)) {
    Fail(base::kNobody, Refusal(Missing(settings_, members_.List(Phase::kAbsent), last_refusal_)));
  }
  if (!complete_ || failed_) return;
  const bool ranks_gone = members_.RanksAreGone();
  ReportSecondaryFailures(ranks_gone);
  if (failed_ || !ranks_gone || std::exchange(ranks_gone_, true)) return;
  LeaveWithin(options.server_leave_ms, "the last rank");
  server_.Put(kRanksLeftKey, "");
}

// The member that has been silent for longest, if that is long enough, and unless it is `reporter`.
void Supervisor::LoseSilent(int64_t least_ms, int reporter) {
  const auto [member, ms] = members_.LongestSilent();
  if (ms < least_ms || member == reporter) return;
  const bool explains = reporter == base::kNobody || members_.regroups();
  if (!explains && Survives(member)) return;  // a loss, but not why that one fails
  const Status status = Status::Error(
      StatusCode::kTimeout,
      "it gave no sign of life for %lld ms: it is stopped, hangs or is out of reach (the limit is "
      "communication.timeout_ms)",
      static_cast<long long>(ms));
  members_.Set(member, Phase::kLost);
  if (Survives(member)) return Lose(member, {status, ExitCode(status.code())});
  failures_.AddLoss(member, status, ExitCode(status.code()));
  End(status.WithRank(member));
}

void Supervisor::LeaveWithin(int64_t timeout_ms, const std::string& reason) {
  leave_deadline_ = base::DeadlineIn(timeout_ms);
  leave_reason_ = "within " + std::to_string(timeout_ms) + " ms after " + reason;
  progress_ = false;
}

void Supervisor::EndLate() {
  if (std::exchange(progress_, false)) {
    leave_deadline_ = base::DeadlineIn(kProgressTimeoutMs);
    return;
  }
  const std::string late =
      members_.SomebodyIsThere() ? members_.Remaining() : members_.List(Phase::kAbsent);
  if (late.empty()) return;
  const bool asked = stop_signal_ != 0;
  const Status status = Status::Error(asked ? StatusCode::kInterrupted : StatusCode::kTimeout,
                                      "%s did not end %s", late.c_str(), leave_reason_.c_str());
  failures_.AddLoss(base::kNobody, status, asked ? 128 + stop_signal_ : ExitCode(status.code()));
  End(status);
}

// Who has waited in vain knows less than the control channel, which knows who is silent: also when
// the end of that one has already made others fail.
void Supervisor::Fail(int member, const Status& status) {
  const bool lost_somebody = base::IsSecondary(status.code()) && status.rank() == base::kNobody;
  const bool waited = status.code() == StatusCode::kTimeout || lost_somebody;
  if (waited && settings_.options.liveness_timeout_ms > 0) LoseSilent(kSuspectMs, member);
  failures_.AddReport(member, status);
  // After a request to stop, kInterrupted is how a member leaves; the others finish their step.
  if (status.code() == StatusCode::kInterrupted && stop_signal_ != 0) return;
  End(Reported(status, member));
}

void Supervisor::End(const Status& cause) {
  if (failed_) return;
  failed_ = true;
  grace_end_ = base::DeadlineIn(settings_.options.grace_ms);
  server_.Abort(cause);
}

void Supervisor::OnStop(int signal, bool gives_up) {
  if (stop_signal_ == 0) {
    stop_signal_ = signal;
    LeaveWithin(settings_.options.stop_timeout_ms, SignalName(signal));
    server_.Broadcast({.kind = MessageKind::kStop, .number = signal});
  }
  if (failed_ || (complete_ && !gives_up)) return;
  const Status status = StoppedBeforeTheStart(stop_signal_);
  failures_.AddLoss(base::kNobody, status, 128 + stop_signal_);
  End(status);
}

void Supervisor::Expect(int rank) {
  server_.Forget(rank);
  members_.Set(rank, Phase::kAbsent);
}

bool Supervisor::AllGone() const {
  return (complete_ || failed_) && !members_.SomebodyIsThere();
}

Status Supervisor::OnHello(const Message& hello, bool adopted) {
  const bool server = base::IsServer(hello.rank);
  // A server from elsewhere cannot know the job.
  if (hello.key != settings_.job && !(server && hello.key.empty())) {
    return Refusal("another run is using " + settings_.place +
                   ": choose another address with --rendezvous");
  }
  std::string refusal = RefusalOf(settings_, hello, adopted);
  // Rank 0 serves the others, and comes in another way.
  const bool taken =
      refusal.empty() && (!members_.IsAbsent(hello.rank) || (hello.rank == 0 && !adopted));
  if (taken) {
    refusal = fmt::format("two processes say that they are {} of the run at {}: give every {}",
                          base::MemberName(hello.rank), settings_.place,
                          server ? "server its own --index"
                                 : "process its own rank, and every run an address or a run id of "
                                   "its own");
  }
  if (refusal.empty()) return {};
  // What is said over the network ends nothing, but for a second process of one job and rank: two
  // runs have met, and nobody knows whose ranks are here.
  const bool two_runs =
      taken && !server && !members_.IsGone(hello.rank) && !base::Passed(two_runs_until_);
  if (adopted ? !complete_ : two_runs) Fail(base::kNobody, Refusal(refusal));
  return Refusal(refusal);
}

void Supervisor::OnJoined(int member) {
  members_.Set(member, Phase::kJoined);
  // At once, so that it knows the limit whatever happens next.
  if (settings_.options.liveness_timeout_ms > 0) server_.Send(member, Ping(settings_.options));
  if (stop_signal_ != 0) server_.Send(member, {.kind = MessageKind::kStop, .number = stop_signal_});
  if (failed_) return;
  if (regroup_deadline_) return members_.SetReady(member);
  if (complete_)
    return server_.Send(member, WelcomeTo(settings_.shape));  // it takes the place of a lost one
  if (members_.SomebodyIsAbsent()) return;
  complete_ = true;
  two_runs_until_ = base::DeadlineIn(kTwoRunsMs);
  server_.Broadcast(WelcomeTo(settings_.shape));
}

void Supervisor::OnSet(int member, const std::string& key) {
  if (key == kRegroupKey || key == kNoRegroupKey) members_.SetRegroups(key == kRegroupKey);
  if (key == kProgressKey) progress_ = true;
  if (key == kLossesAllowedKey && !base::IsServer(member)) losses_allowed_ = true;
}

void Supervisor::OnFail(int member, const Status& status) {
  if (member == base::kNobody && complete_) return;  // no member is missing
  const bool asked = status.code() == StatusCode::kInterrupted && stop_signal_ != 0;
  if (!Survives(member) || asked) return Fail(member, status);
  if (members_.IsGone(member)) return;  // it has been heard already
  const bool waited =
      members_.regroups() ? MayFollowLoss(status.code()) : base::IsSecondary(status.code());
  if (members_.regroups() && !waited) return Fail(member, status);
  if (regroup_deadline_) return;  // it is known why
  if (!members_.regroups()) members_.Set(member, Phase::kLost);
  if (!waited) return Lose(member, {status, ExitCode(status.code())});
  secondary_failures_.push_back({member, status, base::DeadlineIn(kSecondaryFailureMs)});
}

void Supervisor::OnBye(int member) {
  if (members_.IsLost(member)) return;
  members_.Set(member, Phase::kLeft);
  if (base::IsServer(member) || !complete_ || std::exchange(somebody_left_, true)) return;
  LeaveWithin(settings_.options.leave_timeout_ms, base::MemberName(member));
}

void Supervisor::OnLost(int member) {
  if (members_.IsGone(member)) return;
  members_.Set(member, Phase::kLost);
  std::optional<Loss> loss;
  if (settings_.explain_loss) loss = settings_.explain_loss(member);
  if (!loss) {
    loss = {Status::Error(StatusCode::kPeerLost, "its connection to %s ended without a result",
                          settings_.server)};
  }
  if (Survives(member)) return Lose(member, *loss);
  failures_.AddLoss(member, loss->status, loss->exit_code);
  End(loss->status.WithRank(member));
}

// Where all begin again, those that are there hear of it once until they have.
void Supervisor::Lose(int rank, const Loss& loss) {
  const Status& status = loss.status;
  std::string next;
  if (settings_.replace) next = settings_.replace(rank);
  const bool replaced = !next.empty();
  if (!replaced && members_.regroups() && !members_.Drop(rank, settings_.min_ranks)) {
    failures_.AddLoss(rank, status, loss.exit_code);
    return End(status.WithRank(rank));
  }
  if (next.empty()) next = "the run goes on without it";
  Notice(base::MemberName(rank) + ": " + status.message() + "; " + next);
  if (!members_.regroups()) return;
  if (settings_.replaced_from_elsewhere && replaced) replaceable_.push_back(rank);
  secondary_failures_.clear();
  if (!regroup_deadline_) {
    server_.Broadcast(EncodeStatus(MessageKind::kRegroup, status.WithRank(rank)));
  }
  regroup_deadline_ = base::DeadlineIn(settings_.options.rendezvous_timeout_ms);
}

// A rank that failed because of a server or of rank 0 is no loss of its own when that one is the
// end of the run.
void Supervisor::ReportSecondaryFailures(bool all) {
  while (!secondary_failures_.empty() && (all || base::Passed(secondary_failures_.front().due))) {
    const SecondaryFailure failure = std::move(secondary_failures_.front());
    secondary_failures_.pop_front();
    if (!members_.regroups()) {
      Lose(failure.rank, {failure.status});
      continue;
    }
    LoseSilent(kSuspectMs, failure.rank);
    if (!regroup_deadline_) Fail(failure.rank, failure.status);
    return;
  }
}

// At most one line a second, however many connect.
void Supervisor::OnRefusedConnection(const std::string& address, const std::string& why) {
  if (!complete_) last_refusal_ = " (the last one refused was " + address + ": " + why + ")";
  if (!base::Passed(next_refusal_line_at_)) {
    ++unreported_refusals_;
    return;
  }
  next_refusal_line_at_ = base::DeadlineIn(kRefusalLineMs);
  const int64_t others = std::exchange(unreported_refusals_, 0);
  Notice(
      fmt::format("refused a connection from {}: {}{}", address, why,
                  others > 0 ? fmt::format(" (and {} others since the last line)", others) : ""));
}

}  // namespace engine::launch
