#include "core/launch/supervisor.h"

#include <algorithm>

namespace engine {

Supervisor::Supervisor(int world_size, std::string job, std::string place,
                       int64_t rendezvous_timeout_ms, ExplainLoss explain_loss)
    : job_(std::move(job)),
      place_(std::move(place)),
      rendezvous_timeout_ms_(rendezvous_timeout_ms),
      rendezvous_deadline_(DeadlineIn(rendezvous_timeout_ms)),
      explain_loss_(std::move(explain_loss)),
      server_(*this),
      ranks_(world_size, Phase::kAbsent) {}

void Supervisor::Tick() {
  if (complete_ || failed_ || !Passed(rendezvous_deadline_)) return;
  Fail(-1, Status::Error(StatusCode::kRendezvous,
                         "%s did not join at %s within %lld ms: check that every rank was started "
                         "and can reach this address",
                         List(Phase::kAbsent).c_str(), place_.c_str(),
                         static_cast<long long>(rendezvous_timeout_ms_)));
}

void Supervisor::Fail(int rank, const Status& status) {
  verdict_.AddReport(rank, status);
  // After the wish to stop, kInterrupted is how a rank leaves; the others finish their step.
  if (status.code() == StatusCode::kInterrupted && stop_signal_ != 0) return;
  GiveUp(status.rank() >= 0 ? status : status.WithRank(rank));
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

bool Supervisor::AllGone() const {
  return (complete_ || failed_ || stop_signal_ != 0) &&
         std::ranges::count(ranks_, Phase::kJoined) == 0;
}

Status Supervisor::OnHello(const Message& hello) {
  if (hello.key != job_) {
    return Status::Error(StatusCode::kRendezvous,
                         "another run is using %s: choose another address with --rendezvous",
                         place_.c_str());
  }
  const int rank = hello.rank, world_size = hello.number;
  const int expected = static_cast<int>(ranks_.size());
  Status refusal;
  if (hello.id != kProtocolVersion) {
    refusal = Status::Error(StatusCode::kRendezvous,
                            "rank %d speaks version %u of the rendezvous protocol and rank 0 "
                            "version %u: start all ranks from the same build",
                            rank, hello.id, kProtocolVersion);
  } else if (world_size != expected) {
    refusal = Status::Error(StatusCode::kRendezvous,
                            "rank %d was started as one of %d ranks but rank 0 as one of %d: start "
                            "every rank with the same number of ranks",
                            rank, world_size, expected);
  } else if (rank < 0 || rank >= expected) {
    refusal = Status::Error(StatusCode::kRendezvous, "there is no rank %d among %d ranks", rank,
                            expected);
  } else if (ranks_[rank] != Phase::kAbsent) {
    refusal =
        Status::Error(StatusCode::kRendezvous,
                      "two processes say that they are rank %d: give every process its own", rank);
  }
  // A stranger cannot disturb a run that has started; before that the mistake is this job's own.
  if (!refusal.ok() && !complete_) Fail(-1, refusal);
  return refusal;
}

void Supervisor::OnJoined(int rank) {
  ranks_[rank] = Phase::kJoined;
  if (stop_signal_ != 0) BroadcastStop();  // again for the others, who ignore it
  if (complete_ || failed_ || std::ranges::count(ranks_, Phase::kAbsent) > 0) return;
  complete_ = true;
  Message welcome;
  welcome.kind = MessageKind::kWelcome;
  server_.Broadcast(welcome);
}

void Supervisor::OnLost(int rank) {
  if (IsGone(rank)) return;
  ranks_[rank] = Phase::kLost;
  Loss loss = explain_loss_(rank);
  if (loss.primary) {
    verdict_.AddLoss(rank, loss.status, loss.exit_code);
  } else {
    verdict_.AddReport(rank, loss.status);
  }
  GiveUp(loss.status.WithRank(rank));
}

std::string Supervisor::List(Phase phase) const {
  std::string names;
  int count = 0;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank] != phase) continue;
    names += (count++ > 0 ? ", " : "") + std::to_string(rank);
  }
  return (count == 1 ? "rank " : "ranks ") + names;
}

}  // namespace engine
