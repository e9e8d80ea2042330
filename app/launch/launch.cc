#include "app/launch/launch.h"

#include <new>
#include <system_error>

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
  Status status;
  try {
    return RunMode(plan, options, body);
  } catch (const std::system_error& error) {
    status =
        Status::Error(StatusCode::kResourceExhausted, "cannot start the ranks: %s", error.what());
  } catch (const std::bad_alloc&) {
    status = Status::Error(StatusCode::kResourceExhausted, "no memory left to start the ranks");
  }
  return Failed(WithLimits(status));
}

}  // namespace engine::launch
