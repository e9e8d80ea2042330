// The ways to run ranks and servers. Each may throw std::system_error when the host has no
// descriptor or thread left; Launch turns that into a Status.
#pragma once

#include <optional>

#include "app/launch/endpoint.h"
#include "app/launch/launch.h"
#include "app/launch/rank_process.h"
#include "app/launch/server_key.h"

namespace engine {

LaunchOutcome LaunchSpawned(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body);
LaunchOutcome LaunchThreads(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body);
LaunchOutcome LaunchJoined(const LaunchPlan& plan, const LaunchOptions& options,
                           const RankBody& body);
LaunchOutcome LaunchServing(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body);

// A member that waits for a run elsewhere waits longer than the run does, to hear who is missing.
inline constexpr int64_t kHearSayMs = 3000;

// Where servers from elsewhere join a run.
struct ServerDoor {
  UniqueFd listener;
  std::optional<ServerKey> key;  // that they must know
  bool loopback = false;         // only this host can reach it
};

// Listens at `address`. kInvalidArgument when others than this host could join and there is no
// key.
Result<ServerDoor> OpenServerDoor(const std::string& address, const std::string& key_file,
                                  const MeetingWords& words);

}  // namespace engine
