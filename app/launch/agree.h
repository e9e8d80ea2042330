// What ranks agree on before the first step, so that it cannot become a hang or a wrong sum.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/rank_context.h"
#include "engine/status.h"

namespace engine::launch {

// Once per `what` and run, on every rank, or on rank 0 and servers: compares `value` (a short text or
// a digest) with rank 0's, which waits for nobody. `code` on each member that differs, blamed on it;
// its failure ends the run for the others, which go on meanwhile. kTimeout, blamed on rank 0, when
// that does not come within RankInfo::rendezvous_timeout_ms.
Status CheckSameOnAllRanks(base::RankContext& context, std::string_view what,
                           std::string_view value, StatusCode code = StatusCode::kConfig);

// Once in a run, before its first transfer: returns when every rank has come here. One in the place of
// a lost rank does not wait.
Status MeetRanks(base::RankContext& context, int64_t timeout_ms);

}  // namespace engine::launch
