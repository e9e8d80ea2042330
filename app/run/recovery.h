// A run that goes on after the loss of a rank (RankContext::regroup): all begin again from what another
// rank had in its memory, which becomes a checkpoint without a name.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/rank_states.h"
#include "app/config/config.h"
#include "app/launch/launch.h"
#include "app/run/best.h"
#include "core/train/trainer.h"
#include "kit/unique_fd.h"

namespace engine::run {

class Recovery {
 public:
  // For a rank of `config`. Where `plan` survives no loss, this does nothing. `resume`: what the run began
  // with, if nothing else is left; `earlier`: checkpoints that were written by then are none of the run.
  // `config` and `rank` are borrowed.
  Recovery(const config::Config& config, base::RankContext& rank, const launch::LaunchPlan& plan,
           std::string resume, std::filesystem::file_time_type earlier);

  // The checkpoint to begin with, or empty: `resume`, or in the place of a lost rank what another has.
  Result<std::string> Begin();
  // From now on the run survives losses, if its ranks update, which OnMade knows. Of rank 0, which has
  // opened the files of the run.
  Status Declare();
  // The trainer was made: all ranks have read what they begin with.
  Status OnMade(train::Trainer& trainer);
  // Whether a run that failed here can go on.
  bool Survives(const Status& failure) const;
  // In that case: waits for the others, and returns the checkpoint to begin again with. `trainer` is the
  // one that has failed, or null: it was not made. It must go before the next is made, and stay where
  // this fails.
  Result<std::string> After(const Status& failure, std::unique_ptr<train::Trainer>& trainer);

  bool survives() const { return survives_; }
  bool again() const { return again_; }  // not with the beginning of the run
  // Whether what Begin or After has returned is what a rank had in its memory.
  bool from_memory() const { return file_.get() >= 0; }
  // What this rank keeps for itself; of its trainer, told by that.
  checkpoint::RankMemory& own() { return own_; }
  // That of the ranks that are left, with the global batch of all.
  config::Config ConfigNow() const;
  Best& best() { return best_; }

 private:
  Result<std::string> Agree(int64_t step, std::unique_ptr<train::Trainer>* trainer);
  Result<std::string> FromStorage() const;
  Status Write(train::Trainer& trainer);
  Status Publish();
  Status Fetch();

  const config::Config& config_;
  base::RankContext& rank_;
  const int32_t ranks_;
  const std::string resume_;
  const std::filesystem::file_time_type earlier_;
  Best best_;
  checkpoint::RankMemory own_;
  bool survives_, again_ = false;
  kit::UniqueFd file_;               // the checkpoint, until all have read it
  int64_t step_ = -1;                // of it, or of the trainer that has failed
  checkpoint::CheckpointInfo info_;  // of that one; world_size 0: there is none
  int64_t parts_ = 0;                // of it, in the store
};

}  // namespace engine::run
