// Writes the checkpoints of a run: a thread does it, from a copy, while training goes on. The last one,
// and any for whose copy there is no memory, is written before training goes on. Where all ranks see the
// file of rank 0, a thread of each writes a part of it; in the store:
//
//   "checkpoint/" STEP PATH "/go"          all can go on: "all", if all have copied, and then the last time
//   "checkpoint/" STEP PATH "/copied" RANK "all" or nothing, of that rank
//   "checkpoint/" STEP PATH "/file"        begin of the data " " path of the temporary file
//   "checkpoint/" STEP PATH "/digest" RANK of the part of that rank, which is on the disk
//   "checkpoint/" STEP PATH "/done"        the file has its name
//
// Rank 0 removes them when they are those of the last but two.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <string>

#include "app/checkpoint/checkpoint.h"
#include "app/run/training.h"
#include "core/base/rank_context.h"
#include "core/train/trainer.h"

namespace engine::run {

// Whether all ranks can write to a file that rank 0 makes beside `path`, which may be empty. Collective.
Result<bool> SharesFile(base::RankContext& rank, const std::string& path);

// Told by the trainer of each step, so that what happened to a file since the last one is told in its
// turn.
class CheckpointWriter final : public RunObserver {
 public:
  // Borrows both. Its end waits for the thread, which waits for no other rank any more, and tells nobody
  // how that ended.
  CheckpointWriter(base::RankContext& rank, RunObserver& observer)
      : rank_(rank), observer_(observer) {}
  ~CheckpointWriter() override { ends_ = true; }

  // TrainerParts::save. Of the files at `path` the `keep` newest stay; empty: there is nothing to write.
  // `together`: each rank writes a part, else rank 0 all. First waits for what is still being written.
  // kTimeout when no more of it comes to the disk for launch::kProgressTimeoutMs.
  Status Save(const std::string& path, int64_t keep, const exec::Executor& executor,
              const checkpoint::CheckpointInfo& info, train::CheckpointKind kind, bool together);

  // Fails as the writing has.
  Status OnStep(const train::StepReport& report) override;
  Status OnEvaluation(const train::EvaluationReport& report) override {
    return observer_.OnEvaluation(report);
  }

 private:
  Status Begin(int64_t keep, checkpoint::CheckpointContent content, bool waits);
  Status Write(const checkpoint::CheckpointContent& content, int64_t keep);
  Status Finish(bool waits_for_disk);
  Status Announce();
  bool ReadyWithin(int64_t ms) const;

  base::RankContext& rank_;
  RunObserver& observer_;
  const std::shared_ptr<checkpoint::CopyMemory> memory_ =
      std::make_shared<checkpoint::CopyMemory>();
  bool told_of_disk_ = false, told_of_memory_ = false;
  bool all_copy_ = false;  // all ranks have had memory for the copies of their parts
  // Of the last file. Not changed while it is being written.
  std::string path_, key_;
  int64_t step_ = 0;
  int32_t writers_ = 1;
  std::deque<std::string> keys_;  // of the last ones
  std::atomic<bool> ends_ = false;
  std::future<Status> write_;  // uses all before it
};

}  // namespace engine::run
