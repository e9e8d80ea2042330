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

// Nothing of ours listens, or speaks, where others may come without a proof of who they are.
Status CheckAccess(const LaunchPlan& plan) {
  const bool spawns = plan.mode == LaunchPlan::Mode::kSpawn;
  const std::string& place = spawns ? plan.serve_at : plan.rendezvous;
  if (place.empty() || plan.insecure || !plan.key_file.empty() || plan.alone()) return {};
  ENGINE_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(place));
  ENGINE_ASSIGN_OR_RETURN(const bool loopback, IsLoopback(endpoint));
  if (loopback) return {};
  return Status::Error(StatusCode::kInvalidArgument,
                       "other hosts can reach %s, where the members of this run meet: give each of "
                       "them the same --key-file FILE, or --insecure in a network of your own",
                       place.c_str());
}

}  // namespace

LaunchOutcome Launch(const LaunchPlan& plan, const LaunchOptions& options,
                     const std::function<Status(base::RankContext&)>& body) {
  Status status = CheckAccess(plan);
  if (status.code() == StatusCode::kInvalidArgument) return {status, kUnsafeExit};
  if (!status.ok()) return Failed(status);
  try {
    return RunMode(plan, options, body);
  } catch (const std::exception& error) {  // std::system_error, std::bad_alloc
    return Failed(WithLimits(
        Status::Error(StatusCode::kResourceExhausted, "cannot start the ranks: %s", error.what())));
  }
}

}  // namespace engine::launch
