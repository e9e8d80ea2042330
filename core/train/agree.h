// What must be the same on all ranks, checked before it can become a hang or a wrong sum.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/rank_context.h"
#include "engine/status.h"

namespace engine::train {

// Collective, once per `what` and run: compares `value` (a short text or a digest) of every rank
// with rank 0's. kConfig with the same sentence on all ranks, which names the ranks that differ;
// rank() is the first of them. A rank that takes the place of a lost one (RankInfo::incarnation)
// calls CheckSameAsRankZero instead.
Status CheckSameOnAllRanks(base::RankContext& context, std::string_view what,
                           std::string_view value, int64_t timeout_ms);

// For a rank that comes later than the others, and for servers: compares `value` with what rank 0
// said in CheckSameOnAllRanks or PublishAsRankZero. kConfig, blamed on this member.
Status CheckSameAsRankZero(base::RankContext& context, std::string_view what,
                           std::string_view value, int64_t timeout_ms);

// Rank 0's part of that, where the other ranks have nothing to compare.
Status PublishAsRankZero(base::RankContext& context, std::string_view what, std::string_view value);

}  // namespace engine::train
