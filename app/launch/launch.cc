#include "app/launch/launch.h"

#include <exception>

#include "app/launch/launch_modes.h"
#include "app/launch/limits.h"

namespace engine::launch {
namespace {

// Nothing of ours listens, or speaks, where others may come without a proof of who they are.
Status CheckAccess(const LaunchPlan& plan, const Endpoint& endpoint) {
  if (plan.insecure || !plan.key_file.empty() || plan.alone()) return {};
  ENGINE_ASSIGN_OR_RETURN(const bool loopback, IsLoopback(endpoint));
  if (loopback) return {};
  return Status::Error(StatusCode::kInvalidArgument,
                       "other hosts can reach %s, where the members of this run meet: give each of "
                       "them the same --key-file FILE, or --insecure in a network of your own",
                       endpoint.text.c_str());
}

}  // namespace

LaunchOutcome Launch(const LaunchPlan& plan, const LaunchOptions& options,
                     const std::function<Status(base::RankContext&)>& body) {
  const bool spawns = plan.mode == LaunchPlan::Mode::kSpawn;
  const std::string& place = spawns ? plan.serve_at : plan.rendezvous;
  Result<Endpoint> endpoint = place.empty() ? Endpoint{} : ParseEndpoint(place);
  if (!endpoint.ok()) return Failed(endpoint.status());
  if (plan.name_comes_later) {
    const Status named = AwaitName(*endpoint, base::DeadlineIn(options.rendezvous_timeout_ms));
    if (!named.ok()) return Failed(named);
  }
  if (!place.empty()) {
    const Status access = CheckAccess(plan, *endpoint);
    if (access.code() == StatusCode::kInvalidArgument) return {access, kUnsafeExit};
    if (!access.ok()) return Failed(access);
  }
  try {
    if (spawns) return LaunchSpawned(plan, options, *endpoint, body);
    if (plan.mode == LaunchPlan::Mode::kThreads) return LaunchThreads(plan, options, body);
    return LaunchJoined(plan, options, *endpoint, body);
  } catch (const std::exception& error) {  // std::system_error, std::bad_alloc
    return Failed(WithLimits(
        Status::Error(StatusCode::kResourceExhausted, "cannot start the ranks: %s", error.what())));
  }
}

}  // namespace engine::launch
