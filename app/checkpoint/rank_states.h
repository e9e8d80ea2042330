// What each rank keeps for itself, in checkpoints: tensors of the hook that says how gradients travel
// (engine/ext/wire_format.h), and what hooks, scheduler and communicator remember
// (engine/ext/saved_state.h). Parameters and states of the optimizer are one for all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "core/exec/executor.h"
#include "engine/status.h"

namespace engine::checkpoint {

// A line for each: ranks must have the same.
std::string DescribeRankStates(const exec::Executor& executor);

// Brings those of all ranks together on rank 0, which has their tensors then, in a file beside `path`.
// Collective; of ranks that go asynchronously rank 0 calls it alone, and has its own. After Flush. kPlugin
// when a plugin breaks the contract.
Result<RankStates> CollectRankStates(const exec::Executor& executor, const std::string& path);

// What one rank keeps for itself, in its own memory, while all begin again after a loss: of the step from
// which they do. Not on accelerators.
class RankMemory {
 public:
  // All steps before `step` are done, and it has changed nothing yet (ExecutorOptions::keep_states).
  Status Keep(const exec::Executor& executor, uint64_t step);
  // After a failure: all begin again behind `step`.
  Status ReturnTo(const exec::Executor& executor, int64_t step);
  // After ReturnTo. What the plugins of this rank remember, without tensors, as a checkpoint has it of
  // rank 0; while this lives.
  RankStates Saved(const exec::Executor& executor);
  // Gives an executor that was made since the tensors, if there are any.
  void GiveTensors(const exec::Executor& executor);

 private:
  // By the names of states, and of tensors with their parameter: layouts may differ.
  using Copies = std::map<std::string, std::vector<uint8_t>>;
  static Status Copy(const exec::Executor& executor, const char* prefix, Copies* to);

  uint64_t next_step_ = 0;   // that of earlier_
  Copies earlier_, chosen_;  // of hooks; of all
};

// Gives this rank its own of the file. With another number of ranks rank 0 gets the sum of tensors, and
// all get what the plugins of rank 0 remember. What the file does not have stays as it is. kBadData
// names a state that does not fit this run.
Status LoadRankStates(const OpenedCheckpoint& checkpoint, const exec::Executor& executor,
                      const RankInfo& rank);

// Those of the file without a place in this run, those that it lacks, and those of another number of
// ranks; a sentence each.
std::vector<std::string> RankStateWarnings(const OpenedCheckpoint& checkpoint,
                                           const exec::Executor& executor, int32_t world_size);

// Whether a tensor of a checkpoint is one of these.
bool IsRankState(std::string_view tensor);

}  // namespace engine::checkpoint
