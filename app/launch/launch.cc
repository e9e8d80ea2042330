#include "app/launch/launch.h"

#include <exception>

#include "app/launch/launch_modes.h"
#include "app/launch/limits.h"

namespace engine::launch {
namespace {

LaunchOutcome RunMode(const LaunchPlan& plan, const LaunchOptions& options, const RankBody& body) {
  switch (plan.mode) {
    case LaunchPlan::Mode::kSpawn:
      return LaunchSpawned(plan, options, body);
    case LaunchPlan::Mode::kThreads:
      return LaunchThreads(plan, options, body);
    case LaunchPlan::Mode::kJoin:
      return LaunchJoined(plan, options, body);
    case LaunchPlan::Mode::kServe:
      return LaunchServing(plan, options, body);
  }
  ENGINE_CHECK(false, "mode %d", static_cast<int>(plan.mode));
}

}  // namespace

LaunchOutcome Launch(const LaunchPlan& plan, const LaunchOptions& options,
                     const std::function<Status(base::RankContext&)>& body) {
  try {
    return RunMode(plan, options, body);
  } catch (const std::exception& error) {  // std::system_error, std::bad_alloc
    return Failed(WithLimits(
        Status::Error(StatusCode::kResourceExhausted, "cannot start the ranks: %s", error.what())));
  }
}

}  // namespace engine::launch
