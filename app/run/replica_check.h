// Ranks that no longer have the same parameters are found, and named.
#pragma once

#include <memory>

#include "core/base/rank_context.h"
#include "core/exec/step.h"
#include "core/train/run_config.h"

namespace engine::run {

// Compares what is the same on all ranks of a run that is in order: parameters, and states of the
// optimizer of which every rank has all. Not buffers, and no rows that a rank reads only when it needs
// them. Null: there is one rank, or the configuration wants no check. Both are borrowed.
std::unique_ptr<exec::ReplicaCheck> MakeReplicaCheck(const train::RunConfig& config,
                                                     base::RankContext& rank);

}  // namespace engine::run
