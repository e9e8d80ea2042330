// What each rank keeps for itself, in checkpoints: tensors of the hook that says how gradients travel
// (engine/ext/wire_format.h), and what hooks, scheduler and communicator remember
// (engine/ext/saved_state.h). Parameters and states of the optimizer are one for all ranks.
#pragma once

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

// What the plugins of this rank remember, without tensors, as a checkpoint has it of rank 0. Not
// collective; also after a failure.
Result<RankStates> OwnRankStates(const exec::Executor& executor, const std::string& path);

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
