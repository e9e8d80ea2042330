#include "app/launch/launcher_environment.h"

#include <regex>
#include <utility>

#include "app/launch/endpoint.h"

namespace engine::launch {
namespace {

constexpr int kMaxRanks = 1 << 20;

struct Names {
  Launcher launcher;
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr Names kNames[] = {
    {Launcher::kTorchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {Launcher::kOpenMpi, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kSlurm, "Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
    {Launcher::kPmi, "PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {Launcher::kKubernetes, "Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "", ""},
};

std::string Value(const EnvironmentVariables& environment, const std::string& name) {
  const std::string* value = Find(environment, name);
  return value ? *value : "";
}

// The number in `name`, which must be in [low, high].
Result<int> Number(const EnvironmentVariables& environment, const Names& names, const char* name,
                   int low, int high) {
  int number = 0;
  std::string text = Value(environment, name);
  if (ParseInt(text, low, high, &number)) return number;
  return Status::Error(StatusCode::kInvalidArgument,
                       "%s=%s in the environment of %s is not a number in %d to %d; --launcher "
                       "none ignores the environment",
                       name, text.c_str(), names.name, low, high);
}

// The optional local rank and size.
Status ReadLocal(const EnvironmentVariables& environment, const Names& names, RankInfo* info) {
  if (Find(environment, names.local_rank) != nullptr) {
    ENGINE_ASSIGN_OR_RETURN(info->local_rank,
                            Number(environment, names, names.local_rank, 0, info->world_size - 1));
    info->local_world_size = info->local_rank + 1;  // at least, if nothing says more
  }
  if (Find(environment, names.local_world_size) != nullptr) {
    ENGINE_ASSIGN_OR_RETURN(
        info->local_world_size,
        Number(environment, names, names.local_world_size, info->local_rank + 1, info->world_size));
  }
  return {};
}

std::string OpenMpiJob(const EnvironmentVariables& environment) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const std::string* value = Find(environment, name)) return *value;
  }
  std::string uri = Value(environment, "OMPI_MCA_orte_hnp_uri");  // "jobid.vpid;address;..."
  return uri.substr(0, uri.find(';'));
}

void AddDetails(const EnvironmentVariables& environment, LauncherRank* rank) {
  RankInfo& info = rank->info;
  switch (rank->launcher) {
    case Launcher::kTorchrun:
      rank->nested = Find(environment, "TORCHELASTIC_RUN_ID") != nullptr;
      rank->job = Value(environment, "TORCHELASTIC_RUN_ID");
      rank->job += '.';  // a restarted run must not meet what is left of the one before
      rank->job += Value(environment, "TORCHELASTIC_RESTART_COUNT");
      break;
    case Launcher::kOpenMpi:
      rank->nested = true;
      rank->job = OpenMpiJob(environment);
      break;
    case Launcher::kSlurm: {
      rank->job = Value(environment, "SLURM_JOB_ID") + "." + Value(environment, "SLURM_STEP_ID");
      int node = 0;
      const std::vector<int> tasks =
          ParseTasksPerNode(Value(environment, "SLURM_STEP_TASKS_PER_NODE"));
      const int nodes = static_cast<int>(tasks.size());
      if (ParseInt(Value(environment, "SLURM_NODEID"), 0, nodes - 1, &node) &&
          tasks[node] > info.local_rank && tasks[node] <= info.world_size) {
        info.local_world_size = tasks[node];
      }
      break;
    }
    case Launcher::kPmi:
    case Launcher::kKubernetes:
      break;  // their variables name no job
  }
  info.one_host = info.local_world_size == info.world_size ? 1 : 0;
}

}  // namespace

const std::string* Find(const EnvironmentVariables& environment, const std::string& name) {
  auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? nullptr : &found->second;
}

std::vector<int> ParseTasksPerNode(const std::string& text) {
  static const std::regex kNodes(R"((\d{1,7})(?:\(x(\d{1,7})\))?(?:,|$))");
  std::vector<int> tasks;
  constexpr auto kOneAfterTheOther = std::regex_constants::match_continuous;
  std::smatch nodes;
  for (auto rest = text.begin(); rest != text.end(); rest = nodes.suffix().first) {
    if (!std::regex_search(rest, text.end(), nodes, kNodes, kOneAfterTheOther)) return {};
    const int count = std::stoi(nodes[1]);
    const int times = nodes[2].matched ? std::stoi(nodes[2]) : 1;
    if (count < 1 || times < 1 || times > kMaxRanks) return {};
    tasks.insert(tasks.end(), times, count);
  }
  return tasks;
}

Result<std::string> MasterAddress(const LauncherRank& rank,
                                  const EnvironmentVariables& environment) {
  const std::string* address = Find(environment, "MASTER_ADDR");
  if (address == nullptr || Find(environment, "MASTER_PORT") == nullptr) return std::string();
  const bool agent = rank.launcher == Launcher::kTorchrun &&
                     Value(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  ENGINE_ASSIGN_OR_RETURN(
      const int port, Number(environment, kNames[static_cast<int>(rank.launcher)], "MASTER_PORT", 1,
                             65535 - agent));
  const bool v6 = address->find(':') != std::string::npos && address->front() != '[';
  return (v6 ? "[" + *address + "]" : *address) + ":" + std::to_string(port + agent);
}

Result<std::optional<LauncherRank>> ReadLauncher(Launcher launcher,
                                                 const EnvironmentVariables& environment) {
  const Names& names = kNames[static_cast<int>(launcher)];
  const bool has_rank = Find(environment, names.rank) != nullptr;
  const bool has_size = Find(environment, names.world_size) != nullptr;
  // In a batch script Slurm describes the allocation, not a task: only srun starts ranks.
  if (launcher == Launcher::kSlurm && Find(environment, "SLURM_STEP_ID") == nullptr) {
    return std::optional<LauncherRank>();
  }
  // WORLD_SIZE, which torchrun sets too, does not come from Kubernetes but from the manifest of the Job; an
  // index without it is that of a run for itself.
  const bool kubernetes = Find(environment, "JOB_COMPLETION_INDEX") != nullptr;
  const bool other = launcher == Launcher::kKubernetes ? !has_rank || !has_size
                                                       : !has_rank && (!has_size || kubernetes);
  if (other) return std::optional<LauncherRank>();
  if (!has_rank || !has_size) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "the environment of %s is incomplete: %s is set and %s is not; set both, "
                         "or ignore the environment with --launcher none",
                         names.name, has_rank ? names.rank : names.world_size,
                         has_rank ? names.world_size : names.rank);
  }
  LauncherRank rank;
  rank.launcher = launcher;
  rank.name = names.name;
  ENGINE_ASSIGN_OR_RETURN(rank.info.world_size,
                          Number(environment, names, names.world_size, 1, kMaxRanks));
  ENGINE_ASSIGN_OR_RETURN(rank.info.rank,
                          Number(environment, names, names.rank, 0, rank.info.world_size - 1));
  rank.source = rank.name + " (" + names.rank + "=" + std::to_string(rank.info.rank) + ", " +
                names.world_size + "=" + std::to_string(rank.info.world_size) + ")";
  ENGINE_RETURN_IF_ERROR(ReadLocal(environment, names, &rank.info));
  AddDetails(environment, &rank);
  return std::optional<LauncherRank>(std::move(rank));
}

}  // namespace engine::launch
