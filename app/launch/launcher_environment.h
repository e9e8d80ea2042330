// Which rank the environment of a launcher says that this process is.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/host.h"
#include "engine/status.h"

namespace engine::launch {

using EnvironmentVariables = std::map<std::string, std::string>;

// Innermost first: each may have been started by a task of the next.
enum class Launcher { kTorchrun, kOpenMpi, kSlurm, kPmi, kKubernetes };
// What --launcher calls them.
inline constexpr const char* kLauncherFlags[] = {"torchrun", "openmpi", "slurm", "pmi",
                                                 "kubernetes"};

struct LauncherRank {
  Launcher launcher = Launcher::kTorchrun;
  std::string name;    // "torchrun", for messages
  std::string source;  // "torchrun (RANK=0, WORLD_SIZE=2)", for messages
  RankInfo info;       // one_host: as far as the launcher says
  // Tells this job from others on this host; empty if the launcher gives nothing.
  std::string job;
  // It may have started these ranks inside a task of another launcher, whose variables then number
  // its own tasks and say nothing of this rank.
  bool nested = false;
};

// What `launcher` says, nothing if it did not start this process. kInvalidArgument when its
// variables are incomplete or no numbers.
Result<std::optional<LauncherRank>> ReadLauncher(Launcher launcher,
                                                 const EnvironmentVariables& environment);

// MASTER_ADDR:MASTER_PORT, or the next port where torchrun's agent keeps its own store on that one;
// empty if they are not both set. kInvalidArgument.
Result<std::string> MasterAddress(const LauncherRank& rank,
                                  const EnvironmentVariables& environment);

// "2(x3),1" -> 2 2 2 1: Slurm's tasks per node. Empty when malformed.
std::vector<int> ParseTasksPerNode(const std::string& text);

const std::string* Find(const EnvironmentVariables& environment, const std::string& name);

}  // namespace engine::launch
