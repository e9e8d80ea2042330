// The log of one member of a run.
#pragma once

#include <spdlog/logger.h>

#include <memory>

#include "engine/host.h"

namespace engine {

// Writes lines like "14:03:59.120 W [rank 1] message" to stderr, without the rank when world_size
// is 1. Each line is one write, so lines of several processes do not mix. The logger is in no
// registry: whoever holds it owns it.
std::shared_ptr<spdlog::logger> MakeRankLogger(int rank, int world_size,
                                               spdlog::level::level_enum level);

// The same for any member: "[server 0] message" of a server.
std::shared_ptr<spdlog::logger> MakeMemberLogger(const RankInfo& info,
                                                 spdlog::level::level_enum level);

}  // namespace engine
