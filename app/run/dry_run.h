// What a run would be: everything up to its first step, on this process alone.
#pragma once

#include <cstdint>
#include <string>

#include "app/config/config.h"
#include "core/base/rank_context.h"

namespace engine::run {

// Makes what a rank of `ranks` has before its first step, with the largest share of a batch that one has,
// in the world of one that `rank` is, and writes nothing. Fails as a run would. `resume` as for MakeTrainer.
// Returns tables of layers, memory, schedule and shares.
Result<std::string> DryRun(const config::Config& config, base::RankContext& rank, int32_t ranks,
                           const std::string& resume);

}  // namespace engine::run
