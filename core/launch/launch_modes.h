// The three ways to run ranks. Each may throw std::system_error when the host has no descriptor or
// thread left; Launch turns that into a Status.
#pragma once

#include "core/launch/launch.h"
#include "core/launch/rank_process.h"

namespace engine {

LaunchOutcome LaunchSpawned(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body);
LaunchOutcome LaunchThreads(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body);
LaunchOutcome LaunchJoined(const LaunchPlan& plan, const LaunchOptions& options,
                           const RankBody& body);

}  // namespace engine
