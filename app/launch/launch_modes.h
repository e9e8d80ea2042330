// The ways to run ranks and servers. Each may throw std::system_error when the host has no
// descriptor or thread left; Launch turns that into a Status.
#pragma once

#include <string>

#include "app/launch/deadlines.h"
#include "app/launch/endpoint.h"
#include "app/launch/exit_code.h"
#include "app/launch/launch.h"
#include "app/launch/limits.h"
#include "app/launch/member.h"
#include "app/launch/rank_process.h"
#include "app/launch/store_server.h"

namespace engine::launch {

// `endpoint`: where servers join, if they come from elsewhere.
LaunchOutcome LaunchSpawned(const LaunchPlan& plan, const LaunchOptions& options,
                            const Endpoint& endpoint, const RankBody& body);
LaunchOutcome LaunchThreads(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body);
// `endpoint`: where the members meet. Also of a server.
LaunchOutcome LaunchJoined(const LaunchPlan& plan, const LaunchOptions& options,
                           const Endpoint& endpoint, const RankBody& body);

inline LaunchOutcome Failed(const Status& status) {
  return {status, ExitCode(status.code())};
}

// Why a member that is to run on this host could not be started.
inline Status CannotStart(const RunShape& shape, int member, const char* why) {
  return WithLimits(Status::Error(
      StatusCode::kResourceExhausted, "cannot start %s of %d ranks and %d servers: %s",
      base::MemberName(member).c_str(), shape.world_size, shape.servers, why));
}

// Listens there, for members that know the key in `key_file` if that names one.
Result<MemberListener> OpenListener(const Endpoint& endpoint, const std::string& key_file,
                                    const EndpointLabels& labels = {});

}  // namespace engine::launch
