#include <unistd.h>

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

Status Refuse(const std::string& sentence) {
  return Status::Error(StatusCode::kInvalidArgument, "%s", sentence.c_str());
}

// `a` is listed before `b`.
Status CheckAgree(const LauncherRank& a, const LauncherRank& b) {
  if (a.nested) return {};
  if (a.info.rank == b.info.rank && a.info.world_size == b.info.world_size) return {};
  return Refuse(a.source + " and " + b.source +
                " disagree on which rank this is: choose one with --launcher");
}

// The rank that the environment gives, from the launcher the flag names or the innermost one.
Result<std::optional<LauncherRank>> FindRank(const LaunchFlags& flags,
                                             const EnvironmentVariables& environment) {
  std::optional<LauncherRank> chosen;
  if (flags.launcher == "none") return chosen;
  const bool any = flags.launcher.empty() || flags.launcher == "auto";
  for (size_t i = 0; i < std::size(kLauncherFlags); ++i) {
    if (!any && flags.launcher != kLauncherFlags[i]) continue;
    ENGINE_ASSIGN_OR_RETURN(std::optional<LauncherRank> rank,
                            ReadLauncher(static_cast<Launcher>(i), environment));
    if (chosen && rank) ENGINE_RETURN_IF_ERROR(CheckAgree(*chosen, *rank));
    if (!chosen) chosen = std::move(rank);
  }
  if (any || chosen) return chosen;
  return Refuse("--launcher " + flags.launcher +
                " was given, but the environment holds no rank from it");
}

Result<std::string> FindRendezvous(const LaunchFlags& flags, const LauncherRank& rank,
                                   const EnvironmentVariables& environment) {
  if (!flags.rendezvous.empty()) return flags.rendezvous;
  ENGINE_ASSIGN_OR_RETURN(std::string master, MasterAddress(rank, environment));
  if (!master.empty()) return master;
  if (rank.launcher == Launcher::kTorchrun || rank.launcher == Launcher::kKubernetes) {
    return Refuse(rank.source +
                  ": MASTER_ADDR and MASTER_PORT are not both set: set them, or give --rendezvous "
                  "HOST:PORT");
  }
  if (rank.info.one_host != 0 && !rank.job.empty()) {
    const std::string name = "engine-" + std::to_string(getuid()) + "-" + rank.job;
    return "unix:" + name.substr(0, kMaxUnixName);
  }
  if (rank.launcher == Launcher::kSlurm) master = SlurmAddress(environment);
  if (!master.empty()) return master;
  return Refuse(rank.name + " started " + std::to_string(rank.info.world_size) + " ranks, " +
                std::to_string(rank.info.local_world_size) +
                " of them on this host, and does not say where they meet: give --rendezvous "
                "HOST:PORT, the host of rank 0 and a free port of it");
}

// Flags that exclude each other, or need one that is not there. `rank`: who this is if something
// else has started the ranks.
Status CheckFlags(const LaunchFlags& flags, const std::optional<LauncherRank>& rank) {
  const bool own = !rank, serve_at = !flags.serve_at.empty(),
             survives = flags.restarts + flags.min_ranks > 0;
  const int ranks = rank ? rank->info.world_size : flags.world_size;
  const bool access = !flags.key_file.empty() || flags.insecure;
  const std::string with = rank ? " and " + rank->source + " exclude each other: " : "";
  const std::pair<bool, std::string> cases[] = {
      {flags.insecure && !flags.key_file.empty(),
       "--insecure does without the key of --key-file: drop one of them"},
      {serve_at && flags.servers == 0,
       "--serve-at is where servers join, and the run has none: add --servers N"},
      {!own && serve_at,
       "--serve-at" + with + "servers join where the ranks meet, so drop --serve-at"},
      {!own && flags.threads,
       "--threads" + with + "drop --threads, or ignore the environment with --launcher none"},
      {!own && flags.world_size != 0 && flags.world_size != rank->info.world_size,
       "-n " + std::to_string(flags.world_size) + with +
           "drop -n, or ignore the environment with --launcher none"},
      {own && !flags.rendezvous.empty(),
       "--rendezvous " + flags.rendezvous +
           " is for ranks that a launcher starts, and there is none: set RANK and WORLD_SIZE for "
           "each rank, or drop it"},
      {own && access && !serve_at,
       "--key-file and --insecure are for members that join over a network, and this run has none: "
       "add --serve-at HOST:PORT, or drop them"},
      {own && serve_at && flags.threads,
       "--serve-at needs ranks that are processes: drop --threads"},
      {own && survives && flags.threads,
       "--restarts and --min-ranks are for processes, and --threads makes threads: drop one"},
      {own && survives && flags.world_size == 0,
       "--restarts and --min-ranks are for several ranks: add -n N"},
      {flags.min_ranks > ranks && ranks > 0, "--min-ranks " + std::to_string(flags.min_ranks) +
                                                 " is more than the " + std::to_string(ranks) +
                                                 " there are: give at most as many"},
      {flags.serve_at.starts_with("unix:"), "--serve-at takes HOST:PORT"}};
  for (const auto& [wrong, sentence] : cases) {
    if (wrong) return Refuse(sentence);
  }
  return serve_at ? ParseEndpoint(flags.serve_at).status() : Status();
}

}  // namespace

Result<LaunchPlan> ResolveLaunch(const LaunchFlags& flags,
                                 const std::map<std::string, std::string>& environment) {
  ENGINE_ASSIGN_OR_RETURN(const std::optional<LauncherRank> rank, FindRank(flags, environment));
  ENGINE_RETURN_IF_ERROR(CheckFlags(flags, rank));
  const int ranks = flags.world_size > 0 ? flags.world_size : 1;
  LaunchPlan plan{.mode = flags.threads ? LaunchPlan::Mode::kThreads : LaunchPlan::Mode::kSpawn,
                  .info = {.world_size = ranks, .local_world_size = ranks},
                  .source = flags.world_size > 0 ? "-n" : "one rank",
                  .serve_at = flags.serve_at,
                  .key_file = flags.key_file,
                  .insecure = flags.insecure,
                  .restarts = flags.restarts,
                  .min_ranks = flags.min_ranks};
  if (rank) {
    plan.mode = LaunchPlan::Mode::kJoin;
    plan.info = rank->info;
    plan.job = rank->job;
    plan.source = rank->name;
    plan.name_comes_later = rank->launcher == Launcher::kKubernetes;
    ENGINE_ASSIGN_OR_RETURN(plan.rendezvous, FindRendezvous(flags, *rank, environment));
    ENGINE_RETURN_IF_ERROR(ParseEndpoint(plan.rendezvous).status());
  }
  plan.info.servers = flags.servers;
  return plan;
}

Result<LaunchPlan> ResolveServe(const std::string& address, int index, const std::string& key_file,
                                bool insecure) {
  ENGINE_RETURN_IF_ERROR(ParseEndpoint(address).status());
  // Where its ranks are is not known to this process.
  return LaunchPlan{.mode = LaunchPlan::Mode::kServe,
                    .info = {.rank = index, .local_world_size = 0, .is_server = 1, .one_host = 0},
                    .rendezvous = address,
                    .source = "engine serve",
                    .key_file = key_file,
                    .insecure = insecure};
}

}  // namespace engine::launch
