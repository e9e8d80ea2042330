// What must be the same on all ranks, checked before it can become a hang or a wrong sum.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/launch/rank_context.h"
#include "engine/status.h"

namespace engine {

// Collective, once per `what` and run: compares `value` (a short text or a digest) of every rank
// with rank 0's. kConfig with the same sentence on all ranks, which names the ranks that differ;
// rank() is the first of them.
Status CheckSameOnAllRanks(RankContext& context, std::string_view what, std::string_view value,
                           int64_t timeout_ms);

}  // namespace engine
