// Watches the ranks of a run through the store server: who is there, who failed first, when to give
// up on the rest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/launch/deadline.h"
#include "core/launch/launch.h"
#include "core/launch/store_server.h"
#include "core/launch/verdict.h"

namespace engine {

// Lives in the thread of its server.
class Supervisor final : public StoreServer::Observer {
 public:
  struct Loss {
    Status status;
    int exit_code = 0;
    bool primary = true;  // false: the end of this rank was our own doing
  };
  // Why `rank` is gone without kBye.
  using ExplainLoss = std::function<Loss(int rank)>;

  // `place`: where the ranks meet, for messages. Ranks must be there within rendezvous_timeout_ms.
  Supervisor(int world_size, std::string job, std::string place, int64_t rendezvous_timeout_ms,
             ExplainLoss explain_loss);

  StoreServer& server() { return server_; }

  // Ends the rendezvous when its deadline has passed.
  void Tick();
  // The first call that is more than a wish to stop ends the run for all ranks. rank -1: the
  // launcher.
  void Fail(int rank, const Status& status);
  // Tells every rank that the user asked to stop.
  void Stop(int signal);

  bool failed() const { return failed_; }
  TimePoint failed_at() const { return failed_at_; }
  bool HasLeft(int rank) const { return ranks_[rank] == Phase::kLeft; }
  bool IsGone(int rank) const { return HasLeft(rank) || ranks_[rank] == Phase::kLost; }
  // No rank is there, and none is expected any more.
  bool AllGone() const;
  // "rank 2", "ranks 1, 3": those that are there.
  std::string Remaining() const { return List(Phase::kJoined); }
  LaunchOutcome Outcome() const { return verdict_.Outcome(stop_signal_); }

  Status OnHello(const Message& hello) override;
  void OnJoined(int rank) override;
  void OnFail(int rank, const Status& status) override { Fail(rank, status); }
  void OnStop(int signal) override { Stop(signal); }
  void OnBye(int rank) override { ranks_[rank] = Phase::kLeft; }
  void OnLost(int rank) override;

 private:
  enum class Phase { kAbsent, kJoined, kLeft, kLost };

  void BroadcastStop();
  void GiveUp(const Status& cause);
  std::string List(Phase phase) const;

  const std::string job_;
  const std::string place_;
  const int64_t rendezvous_timeout_ms_;
  const TimePoint rendezvous_deadline_;
  const ExplainLoss explain_loss_;
  StoreServer server_;
  Verdict verdict_;
  std::vector<Phase> ranks_;
  bool complete_ = false;  // every rank has joined
  bool failed_ = false;
  TimePoint failed_at_{};
  int stop_signal_ = 0;
};

}  // namespace engine
