#include "tools/conform/scheduler/served_ranks.h"

#include <algorithm>
#include <random>
#include <utility>

#include "kit/bucket_planner.h"

namespace engine::conform {

ServedRanks::ServedRanks(std::vector<SchedulerRig*> rigs, bool asynchronous)
    : rigs_(std::move(rigs)), asynchronous_(asynchronous), traces_(rigs_.size()) {
  for (const TaskInfo& task : rigs_.front()->graph.tasks()) {
    if (task.kind != TaskKind::kTransfer || task.transfer != TransferKind::kPush) continue;
    push_of_bucket_.resize(std::max<size_t>(push_of_bucket_.size(), task.bucket + 1));
    push_of_bucket_[task.bucket] = task.id;
  }
}

// A push: at any time. A pull: when all ranks have pushed, those of the begin of a step in the step
// before. Statistics: when all ranks have begun with them.
bool ServedRanks::MayEnd(size_t rank, uint32_t task, uint32_t step) const {
  const TaskInfo& info = rigs_[rank]->graph.tasks()[task];
  if (info.kind != TaskKind::kTransfer) return true;
  if (info.transfer == TransferKind::kPush) return true;
  const bool is_pull = info.transfer == TransferKind::kPull;
  if (is_pull && kit::IsOpeningPull(info) && step == 0) return true;
  for (size_t other = 0; other < rigs_.size(); ++other) {
    const ExecutorModel& there = *rigs_[other]->executor;
    if (is_pull) {
      if (asynchronous_ && other != rank) continue;
      const uint32_t pushed = kit::IsOpeningPull(info) ? step - 1 : step;
      if (!there.WasDone(push_of_bucket_[info.bucket], pushed)) return false;
    } else if (!there.WasStarted(task, step)) {
      return false;
    }
  }
  return true;
}

std::string ServedRanks::Run(uint32_t seed, uint32_t steps) {
  std::mt19937 random(seed);
  for (size_t rank = 0; rank < rigs_.size(); ++rank) {
    const auto may_end = [this, rank](uint32_t task, uint32_t step) {
      return MayEnd(rank, task, step);
    };
    rigs_[rank]->executor->Begin({.steps = steps,
                                  .timing_seed = seed + static_cast<uint32_t>(rank) * 7919,
                                  .flush_seed = seed,
                                  .may_end = may_end},
                                 &traces_[rank]);
  }
  // A rank may be ahead for a while: turns come in runs.
  for (size_t idle = 0; idle < rigs_.size();) {
    const size_t first = random() % rigs_.size();
    idle = 0;
    for (size_t i = 0; i < rigs_.size(); ++i) {
      ExecutorModel& executor = *rigs_[(first + i) % rigs_.size()]->executor;
      uint32_t turns = 0;
      for (const uint32_t most = 1 + random() % 40; turns < most && executor.Turn();) ++turns;
      idle += turns == 0;
    }
  }
  for (size_t rank = 0; rank < rigs_.size(); ++rank) {
    const std::string problem = rigs_[rank]->executor->Outcome();
    if (!problem.empty()) return "rank " + std::to_string(rank) + ": " + problem;
  }
  return "";
}

}  // namespace engine::conform
