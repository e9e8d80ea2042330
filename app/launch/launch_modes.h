// The ways to run ranks and servers. Each may throw std::system_error when the host has no
// descriptor or thread left; Launch turns that into a Status.
#pragma once

#include <optional>
#include <string>

#include "app/launch/deadlines.h"
#include "app/launch/endpoint.h"
#include "app/launch/exit_code.h"
#include "app/launch/launch.h"
#include "app/launch/rank_process.h"
#include "app/launch/server_key.h"

namespace engine::launch {

LaunchOutcome LaunchSpawned(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body);
LaunchOutcome LaunchThreads(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body);
LaunchOutcome LaunchJoined(const LaunchPlan& plan, const LaunchOptions& options,
                           const RankBody& body);
LaunchOutcome LaunchServing(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body);

inline LaunchOutcome Failed(const Status& status) {
  return {status, ExitCode(status.code())};
}

// Where members from elsewhere join a run.
struct MemberListener {
  kit::UniqueFd socket;
  std::optional<ServerKey> key;  // that they must know
  bool loopback = false;         // only this host can reach it
};

// Listens at `address`, for members that know the key in `key_file` if that names one.
Result<MemberListener> OpenListener(const std::string& address, const std::string& key_file,
                                    const EndpointLabels& labels = {});

}  // namespace engine::launch
