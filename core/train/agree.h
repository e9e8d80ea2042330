// What must be the same on all ranks, checked before it can become a hang or a wrong sum.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/rank_context.h"
#include "engine/status.h"

namespace engine::train {

// Once per `what` and run, on every rank: compares `value` (a short text or a digest) with rank 0's.
// kConfig on each rank that differs, blamed on it; its failure ends the run for the others, which
// go on meanwhile. kTimeout, blamed on rank 0, when that does not come.
Status CheckSameOnAllRanks(base::RankContext& context, std::string_view what,
                           std::string_view value, int64_t timeout_ms);

// The part of the others, also of servers.
Status CheckSameAsRankZero(base::RankContext& context, std::string_view what,
                           std::string_view value, int64_t timeout_ms);

// Rank 0's part.
Status PublishAsRankZero(base::RankContext& context, std::string_view what, std::string_view value);

}  // namespace engine::train
