#include "app/launch/supervisor.h"

#include <algorithm>

namespace engine {
namespace {

// For the cause of a rank's complaint about others to show.
constexpr int64_t kComplaintMs = 1000;
constexpr int64_t kStrangerLineMs = 1000;

}  // namespace

Supervisor::Supervisor(Settings settings)
    : settings_(std::move(settings)),
      rendezvous_deadline_(DeadlineIn(settings_.rendezvous_timeout_ms)),
      server_(*this),
      phases_(settings_.shape.members(), Phase::kAbsent) {}

void Supervisor::Notice(const std::string& sentence) const {
  if (settings_.notice) settings_.notice(sentence);
}

void Supervisor::Tick() {
  if (failed_) return;
  if (!complete_) {
    if (!Passed(rendezvous_deadline_)) return;
    const bool servers_come = settings_.shape.servers > 0;
    return Fail(kNobody,
                Status::Error(StatusCode::kRendezvous,
                              "%s did not join at %s within %lld ms: check that every rank%s was "
                              "started and can reach this address",
                              List(Phase::kAbsent).c_str(), settings_.place.c_str(),
                              static_cast<long long>(settings_.rendezvous_timeout_ms),
                              servers_come ? " and server" : ""));
  }
  HearComplaints(RanksGone());
  if (failed_ || !RanksGone()) return;
  if (!ranks_gone_) {
    ranks_gone_ = true;
    servers_deadline_ = DeadlineIn(settings_.server_leave_ms);
    server_.Put(kRanksLeftKey, "");
  }
  for (int i = 0; i < settings_.shape.servers && Passed(servers_deadline_); ++i) {
    if (IsGone(BlameServer(i))) continue;
    return Fail(BlameServer(i), Status::Error(StatusCode::kTimeout,
                                              "it did not leave within %lld ms after the last rank",
                                              static_cast<long long>(settings_.server_leave_ms)));
  }
}

void Supervisor::Fail(int member, const Status& status) {
  verdict_.AddReport(member, status);
  // After the wish to stop, kInterrupted is how a member leaves; the others finish their step.
  if (status.code() == StatusCode::kInterrupted && stop_signal_ != 0) return;
  GiveUp(status.rank() != kNobody ? status : status.WithRank(member));
}

void Supervisor::GiveUp(const Status& cause) {
  if (failed_) return;
  failed_ = true;
  failed_at_ = std::chrono::steady_clock::now();
  server_.Abort(cause);
}

void Supervisor::Stop(int signal) {
  if (stop_signal_ != 0) return;
  stop_signal_ = signal;
  BroadcastStop();
}

void Supervisor::BroadcastStop() {
  Message stop;
  stop.kind = MessageKind::kStop;
  stop.number = stop_signal_;
  server_.Broadcast(stop);
}

void Supervisor::Expect(int rank) {
  server_.Forget(rank);
  phase(rank) = Phase::kAbsent;
}

bool Supervisor::SomebodyIsThere() const {
  return std::ranges::count(phases_, Phase::kJoined) > 0;
}

bool Supervisor::AllGone() const {
  return (complete_ || failed_ || stop_signal_ != 0) && !SomebodyIsThere();
}

bool Supervisor::RanksGone() const {
  return std::all_of(phases_.begin(), phases_.begin() + settings_.shape.world_size,
                     [](Phase phase) { return phase == Phase::kLeft || phase == Phase::kLost; });
}

Status Supervisor::CheckServer(const Message& hello) const {
  const int servers = settings_.shape.servers;
  const std::string name = MemberName(hello.rank);
  const auto refuse = [](const char* format, auto... values) {
    return Status::Error(StatusCode::kRendezvous, format, values...);
  };
  if (hello.id != kProtocolVersion) {
    return refuse(
        "%s speaks version %u of the rendezvous protocol and the run version %u: start servers and "
        "ranks from the same build",
        name.c_str(), hello.id, kProtocolVersion);
  }
  if (servers == 0) {
    return refuse("the run at %s has no servers: start it with --servers", settings_.place.c_str());
  }
  if (!settings_.shape.Has(hello.rank)) {
    return refuse("there is no %s in a run with %d servers: --index goes from 0 to %d",
                  name.c_str(), servers, servers - 1);
  }
  if (phase(hello.rank) != Phase::kAbsent) {
    return refuse("two processes say that they are %s: give every server its own --index",
                  name.c_str());
  }
  return {};
}

Status Supervisor::CheckRank(const Message& hello, bool adopted) const {
  const int rank = hello.rank, expected = settings_.shape.world_size;
  const auto refuse = [](const char* format, auto... values) {
    return Status::Error(StatusCode::kRendezvous, format, values...);
  };
  if (hello.id != kProtocolVersion) {
    return refuse(
        "rank %d speaks version %u of the rendezvous protocol and rank 0 version %u: start all "
        "ranks from the same build",
        rank, hello.id, kProtocolVersion);
  }
  if (!adopted && !settings_.ranks_may_connect) {
    return refuse("the ranks of the run at %s are its own processes: only servers may join",
                  settings_.place.c_str());
  }
  if (hello.number != expected) {
    return refuse(
        "rank %d was started as one of %d ranks but rank 0 as one of %d: start every rank with the "
        "same number of ranks",
        rank, hello.number, expected);
  }
  if (!settings_.shape.Has(rank)) {
    return refuse("there is no rank %d among %d ranks", rank, expected);
  }
  if (phase(rank) != Phase::kAbsent) {
    return refuse("two processes say that they are rank %d: give every process its own", rank);
  }
  return {};
}

Status Supervisor::OnHello(const Message& hello, bool adopted) {
  const bool server = IsServer(hello.rank);
  // A server from elsewhere cannot know the job.
  if (hello.key != settings_.job && !(server && hello.key.empty())) {
    return Status::Error(StatusCode::kRendezvous,
                         "another run is using %s: choose another address with --rendezvous",
                         settings_.place.c_str());
  }
  Status refusal = server ? CheckServer(hello) : CheckRank(hello, adopted);
  // A stranger cannot disturb a run that has started, nor one whose ranks come in another way;
  // otherwise the mistake is this job's own. Whoever starts a server by hand may try again.
  const bool own_mistake = adopted || (!server && settings_.ranks_may_connect);
  if (!refusal.ok() && !complete_ && own_mistake) Fail(kNobody, refusal);
  return refusal;
}

void Supervisor::OnJoined(int member) {
  phase(member) = Phase::kJoined;
  if (stop_signal_ != 0) BroadcastStop();  // again for the others, who ignore it
  if (failed_) return;
  if (complete_) return Welcome(member);  // it takes the place of a lost one
  if (std::ranges::count(phases_, Phase::kAbsent) > 0) return;
  complete_ = true;
  for (int i = 0; i < settings_.shape.members(); ++i) Welcome(settings_.shape.At(i));
}

void Supervisor::Welcome(int member) {
  Message welcome;
  welcome.kind = MessageKind::kWelcome;
  welcome.number = settings_.shape.world_size;
  welcome.id = static_cast<uint32_t>(settings_.shape.servers);
  welcome.rank = settings_.shape.one_host ? 1 : 0;
  server_.Send(member, welcome);
}

void Supervisor::OnAllowLosses(int member) {
  if (!IsServer(member)) losses_allowed_ = true;
}

void Supervisor::OnFail(int member, const Status& status) {
  const bool asked = status.code() == StatusCode::kInterrupted && stop_signal_ != 0;
  if (!Survives(member) || asked) return Fail(member, status);
  if (IsGone(member)) return;  // it has been heard already
  phase(member) = Phase::kLost;
  if (!IsSecondary(status.code())) return Lose(member, status);
  complaints_.push_back({member, status, DeadlineIn(kComplaintMs)});
}

void Supervisor::OnBye(int member) {
  if (phase(member) != Phase::kLost) phase(member) = Phase::kLeft;
}

void Supervisor::OnLost(int member) {
  if (IsGone(member)) return;
  phase(member) = Phase::kLost;
  const Loss loss = settings_.explain_loss(member);
  if (Survives(member)) return Lose(member, loss.status);
  if (loss.primary) {
    verdict_.AddLoss(member, loss.status, loss.exit_code);
  } else {
    verdict_.AddReport(member, loss.status);
  }
  GiveUp(loss.status.WithRank(member));
}

void Supervisor::Lose(int rank, const Status& status) {
  std::string next;
  if (settings_.replace) next = settings_.replace(rank);
  if (next.empty()) next = "the run goes on without it";
  Notice(MemberName(rank) + ": " + status.message() + "; " + next);
}

// A rank that complains of a server or of rank 0 is no loss of its own when that one is the end of
// the run.
void Supervisor::HearComplaints(bool all) {
  std::vector<Complaint> later;
  for (Complaint& complaint : std::exchange(complaints_, {})) {
    if (all || Passed(complaint.due)) {
      Lose(complaint.rank, complaint.status);
    } else {
      later.push_back(std::move(complaint));
    }
  }
  complaints_ = std::move(later);
}

// At most one line a second, however many knock.
void Supervisor::OnStranger(const std::string& address, const std::string& why) {
  if (!Passed(next_stranger_at_)) {
    ++untold_strangers_;
    return;
  }
  next_stranger_at_ = DeadlineIn(kStrangerLineMs);
  std::string line = "refused a connection from " + address + ": " + why;
  if (untold_strangers_ > 0) {
    line += " (and " + std::to_string(untold_strangers_) + " others since the last line)";
  }
  untold_strangers_ = 0;
  Notice(line);
}

std::string Supervisor::List(Phase wanted) const {
  std::string names[2];
  int counts[2] = {};
  for (size_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i] != wanted) continue;
    const int member = settings_.shape.At(static_cast<int>(i));
    const bool server = IsServer(member);
    names[server] += counts[server]++ > 0 ? ", " : "";
    names[server] += std::to_string(server ? BlamedServer(member) : member);
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

}  // namespace engine
