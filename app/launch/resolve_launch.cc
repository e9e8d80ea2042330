#include <unistd.h>

#include <charconv>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "app/launch/endpoint.h"
#include "app/launch/launch.h"
#include "app/launch/launcher_environment.h"

namespace engine::launch {
namespace {

constexpr int kMaxLocalRanks = 4096;
constexpr int kMaxServers = 256;

template <typename... Values>
Status Refuse(const char* format, Values... values) {
  return Status::Error(StatusCode::kInvalidArgument, format, values...);
}

// What is wrong, and the sentence for it.
Status RefuseFirst(std::initializer_list<std::pair<bool, const char*>> cases) {
  for (const auto& [wrong, sentence] : cases) {
    if (wrong) return Refuse("%s", sentence);
  }
  return {};
}

// `a` is listed before `b`.
Status CheckAgree(const LauncherRank& a, const LauncherRank& b) {
  if (a.nested) return {};
  if (a.info.rank == b.info.rank && a.info.world_size == b.info.world_size) return {};
  return Refuse(
      "%s (%s) and %s (%s) disagree on which rank this is: choose one with "
      "--launcher",
      a.name.c_str(), a.variables.c_str(), b.name.c_str(), b.variables.c_str());
}

// The rank that the environment gives, from the launcher the flag names or the innermost one.
Result<std::optional<LauncherRank>> FindRank(const LaunchFlags& flags,
                                             const EnvironmentVariables& environment) {
  std::optional<LauncherRank> chosen;
  if (flags.launcher == "none") return chosen;
  const bool any = flags.launcher.empty() || flags.launcher == "auto";
  bool known = any;
  for (size_t i = 0; i < std::size(kLauncherFlags); ++i) {
    if (!any && flags.launcher != kLauncherFlags[i]) continue;
    known = true;
    ENGINE_ASSIGN_OR_RETURN(std::optional<LauncherRank> rank,
                            ReadLauncher(static_cast<Launcher>(i), environment));
    if (!rank) continue;
    if (chosen) {
      ENGINE_RETURN_IF_ERROR(CheckAgree(*chosen, *rank));
    } else {
      chosen = std::move(rank);
    }
  }
  if (!known) {
    return Refuse(
        "--launcher %s is unknown; choose auto, none, torchrun, openmpi, slurm "
        "or pmi",
        flags.launcher.c_str());
  }
  if (!any && !chosen) {
    return Refuse("--launcher %s was given, but the environment holds no rank from it",
                  flags.launcher.c_str());
  }
  return chosen;
}

// MASTER_ADDR:MASTER_PORT. Where torchrun's agent keeps its own store on MASTER_PORT, the next
// port.
Result<std::string> MasterAddress(const LauncherRank& rank,
                                  const EnvironmentVariables& environment) {
  const std::string* address = Find(environment, "MASTER_ADDR");
  const std::string* port_text = Find(environment, "MASTER_PORT");
  if (address == nullptr || port_text == nullptr) return std::string();
  int port = 0;
  auto [end, error] =
      std::from_chars(port_text->data(), port_text->data() + port_text->size(), port);
  const std::string* agent = Find(environment, "TORCHELASTIC_USE_AGENT_STORE");
  bool taken = rank.launcher == Launcher::kTorchrun && agent != nullptr && *agent == "True";
  if (error != std::errc() || end != port_text->data() + port_text->size() || port < 1 ||
      port + taken > 65535) {
    return Refuse(
        "MASTER_PORT=%s in the environment of %s gives no port in 1 to 65535: "
        "say where the ranks meet with --rendezvous HOST:PORT",
        port_text->c_str(), rank.name.c_str());
  }
  bool v6 = address->find(':') != std::string::npos && address->front() != '[';
  return (v6 ? "[" + *address + "]" : *address) + ":" + std::to_string(port + taken);
}

Result<std::string> FindRendezvous(const LaunchFlags& flags, const LauncherRank& rank,
                                   const EnvironmentVariables& environment) {
  if (!flags.rendezvous.empty()) return flags.rendezvous;
  ENGINE_ASSIGN_OR_RETURN(std::string master, MasterAddress(rank, environment));
  if (!master.empty()) return master;
  if (rank.info.one_host != 0 && !rank.job.empty() && rank.launcher != Launcher::kTorchrun) {
    std::string name = "engine-" + std::to_string(getuid()) + "-" + rank.job;
    return "unix:" + name.substr(0, 100);
  }
  if (rank.launcher == Launcher::kTorchrun) {
    return Refuse(
        "%s set %s, but MASTER_ADDR and MASTER_PORT are not both set: set them, "
        "or give --rendezvous HOST:PORT",
        rank.name.c_str(), rank.variables.c_str());
  }
  return Refuse(
      "%s started %d ranks, %d of them on this host, and does not say where they "
      "meet: give --rendezvous HOST:PORT, the host of rank 0 and a free port of it",
      rank.name.c_str(), rank.info.world_size, rank.info.local_world_size);
}

// Flags that mean nothing whoever starts the ranks.
Status CheckMemberFlags(const LaunchFlags& flags) {
  if (flags.servers < 0 || flags.servers > kMaxServers) {
    return Refuse("--servers %d is not in 0 to %d", flags.servers, kMaxServers);
  }
  return RefuseFirst({{flags.restarts < 0, "--restarts takes a number that is not negative"},
                      {flags.insecure && !flags.key_file.empty(),
                       "--insecure does without the key of --key-file: drop one of them"},
                      {!flags.serve_at.empty() && flags.servers == 0,
                       "--serve-at is where servers join, and the run has none: add --servers N"}});
}

Status RefuseWithLauncher(const LaunchFlags& flags, const LauncherRank& rank) {
  const auto refuse = [&](const char* flag, const char* advice) {
    return Refuse("%s and %s (%s) exclude each other: %s", flag, rank.name.c_str(),
                  rank.variables.c_str(), advice);
  };
  if (!flags.serve_at.empty()) {
    return refuse("--serve-at", "servers join where the ranks meet, so drop --serve-at");
  }
  if (flags.restarts > 0) {
    return refuse("--restarts", "that launcher starts the ranks, also again, so drop --restarts");
  }
  return {};
}

// Of a run whose ranks this process starts.
Status CheckOwnRanks(const LaunchFlags& flags) {
  const bool serve_at = !flags.serve_at.empty(), restarts = flags.restarts > 0;
  ENGINE_RETURN_IF_ERROR(RefuseFirst(
      {{(!flags.key_file.empty() || flags.insecure) && !serve_at,
        "--key-file and --insecure are for members that join over a network, and this run has "
        "none: add --serve-at HOST:PORT, or drop them"},
       {serve_at && flags.threads, "--serve-at needs ranks that are processes: drop --threads"},
       {restarts && flags.threads,
        "--restarts starts processes again, and --threads makes threads: drop one"},
       {restarts && flags.world_size == 0,
        "--restarts is for ranks that this command starts: add -n N"}}));
  if (!serve_at) return {};
  ENGINE_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(flags.serve_at));
  return RefuseFirst({{!endpoint.unix_name.empty(), "--serve-at takes HOST:PORT"}});
}

Result<LaunchPlan> PlanJoin(const LaunchFlags& flags, const LauncherRank& rank,
                            const EnvironmentVariables& environment) {
  if (flags.threads) {
    return Refuse(
        "--threads makes all ranks in one process, but %s (%s) started this as "
        "one of its own: drop --threads, or ignore it with --launcher none",
        rank.name.c_str(), rank.variables.c_str());
  }
  if (flags.world_size != 0 && flags.world_size != rank.info.world_size) {
    return Refuse(
        "-n %d and %s (%s) disagree on the number of ranks: drop -n, or ignore "
        "the environment with --launcher none",
        flags.world_size, rank.name.c_str(), rank.variables.c_str());
  }
  ENGINE_RETURN_IF_ERROR(RefuseWithLauncher(flags, rank));
  LaunchPlan plan{.mode = LaunchPlan::Mode::kJoin,
                  .info = rank.info,
                  .job = rank.job,
                  .source = rank.name,
                  .key_file = flags.key_file,
                  .insecure = flags.insecure};
  plan.info.servers = flags.servers;
  ENGINE_ASSIGN_OR_RETURN(plan.rendezvous, FindRendezvous(flags, rank, environment));
  ENGINE_RETURN_IF_ERROR(ParseEndpoint(plan.rendezvous).status());
  return plan;
}

}  // namespace

Result<LaunchPlan> ResolveLaunch(const LaunchFlags& flags,
                                 const std::map<std::string, std::string>& environment) {
  if (flags.world_size < 0 || flags.world_size > kMaxLocalRanks) {
    return Refuse("-n %d is not in 1 to %d", flags.world_size, kMaxLocalRanks);
  }
  ENGINE_RETURN_IF_ERROR(CheckMemberFlags(flags));
  ENGINE_ASSIGN_OR_RETURN(std::optional<LauncherRank> rank, FindRank(flags, environment));
  if (rank) return PlanJoin(flags, *rank, environment);
  if (!flags.rendezvous.empty()) {
    return Refuse(
        "--rendezvous %s is for ranks that a launcher starts, and there is none: "
        "set RANK and WORLD_SIZE for each rank, or drop it",
        flags.rendezvous.c_str());
  }
  ENGINE_RETURN_IF_ERROR(CheckOwnRanks(flags));
  const int ranks = flags.world_size > 0 ? flags.world_size : 1;
  return LaunchPlan{
      .mode = flags.threads ? LaunchPlan::Mode::kThreads : LaunchPlan::Mode::kSpawn,
      .info = {.world_size = ranks, .local_world_size = ranks, .servers = flags.servers},
      .source = flags.world_size > 0 ? "-n" : "one rank",
      .serve_at = flags.serve_at,
      .key_file = flags.key_file,
      .insecure = flags.insecure,
      .restarts = flags.restarts};
}

Result<LaunchPlan> ResolveServe(const std::string& address, int index, const std::string& key_file,
                                bool insecure) {
  ENGINE_RETURN_IF_ERROR(ParseEndpoint(address).status());
  if (index < 0 || index >= kMaxServers) {
    return Refuse("--index %d is not in 0 to %d", index, kMaxServers - 1);
  }
  // Where its ranks are is not known to this process.
  return LaunchPlan{.mode = LaunchPlan::Mode::kServe,
                    .info = {.rank = index, .local_world_size = 0, .is_server = 1, .one_host = 0},
                    .rendezvous = address,
                    .source = "engine serve",
                    .key_file = key_file,
                    .insecure = insecure};
}

}  // namespace engine::launch
