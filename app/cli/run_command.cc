#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/checkpoint/atomic_file.h"
#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/resume.h"
#include "app/checkpoint/retention.h"
#include "app/cli/commands.h"
#include "app/cli/progress.h"
#include "app/launch/bind.h"
#include "app/launch/log.h"
#include "app/run/dry_run.h"
#include "app/run/event_file.h"
#include "app/run/metrics_file.h"
#include "app/run/serve.h"
#include "app/run/training.h"

namespace engine::cli {
namespace {

// Makes the folder of an output file and makes sure that it can be written, before hours of
// training. `replaced`: by renaming a new file, which no device or pipe may be.
Status PrepareOutput(const char* key, const std::string& path, bool replaced) {
  if (path.empty()) return {};
  std::error_code ignored;
  const std::filesystem::file_status file = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(file)) {
    return Status::Error(StatusCode::kStorage,
                         "%s: cannot write to %s: it is a folder; name a file", key, path.c_str());
  }
  if (std::filesystem::is_other(file) && !replaced) return {};
  const std::string folder = std::filesystem::path(path).parent_path();
  ENGINE_RETURN_IF_ERROR(
      command::PrepareFolder(folder.empty() ? "." : folder).WithContext("%s", key));
  // The name of its temporary file is longer than its own.
  return replaced ? checkpoint::AtomicFile::Create(path).status().WithContext("%s", key) : Status();
}

// Of a run that goes on and names no configuration, that of its checkpoint.
Result<config::Config> ConfigInCheckpoint(const RunFlags& flags,
                                          const command::Environment& environment,
                                          const std::vector<config::DefaultPlugin>& communicators) {
  ENGINE_ASSIGN_OR_RETURN(const checkpoint::OpenedCheckpoint checkpoint,
                          checkpoint::OpenCheckpoint(flags.resume));
  // It goes on writing to the file that the user has named.
  std::vector<std::string> overrides = {"output.checkpoint=" +
                                        checkpoint::FirstName(flags.resume, checkpoint.info.step)};
  overrides.insert(overrides.end(), flags.config.overrides.begin(), flags.config.overrides.end());
  return command::LoadConfig({.text = checkpoint.info.config,
                              .origin = "configuration in " + flags.resume,
                              .is_data = true,
                              .overrides = overrides,
                              .plugins = flags.config.plugins,
                              .default_plugins = communicators},
                             flags.config.plugin, environment);
}

// In place of --resume auto the newest checkpoint of the configuration, or none.
Status FindResume(const std::string& path, const std::function<void(const std::string&)>& notice,
                  RunFlags* flags) {
  if (path.empty()) {
    return Status::Error(StatusCode::kConfig,
                         "--resume auto looks for the checkpoints of this configuration, which "
                         "writes none: set 'output.checkpoint'");
  }
  std::vector<Status> damaged;
  flags->resume = checkpoint::NewestCheckpoint(path, &damaged);
  for (const Status& status : damaged) notice("left out: " + std::string(status.message()));
  if (flags->quiet) return {};
  notice(flags->resume.empty() ? "no checkpoint " + path + " yet: from the beginning"
                               : "goes on from " + flags->resume);
  return {};
}

// The configuration of `flags`, whose `resume` is a file or empty when this returns.
Result<config::Config> LoadRunConfig(const command::Environment& environment, const RankInfo& shape,
                                     const std::function<void(const std::string&)>& notice,
                                     RunFlags* flags) {
  const std::vector<config::DefaultPlugin> communicators = command::DefaultCommunicators(shape);
  const bool finds = flags->resume == "auto";
  if (!finds && !flags->resume.empty() && flags->config.file.empty()) {
    return ConfigInCheckpoint(*flags, environment, communicators);
  }
  // Looked at now, so that a file that is missing or damaged is told once and at once.
  if (!finds && !flags->resume.empty()) {
    ENGINE_RETURN_IF_ERROR(checkpoint::OpenCheckpoint(flags->resume).status());
  }
  ENGINE_ASSIGN_OR_RETURN(config::Config config,
                          command::LoadConfig(flags->config, environment, communicators));
  if (finds) ENGINE_RETURN_IF_ERROR(FindResume(config.output().checkpoint, notice, flags));
  return config;
}

// Makes the folders of what the run writes. It replaces no checkpoint but its own, unless it is told to.
Status PrepareOutputs(const config::OutputOptions& output, const RunFlags& flags, bool goes_on) {
  ENGINE_RETURN_IF_ERROR(PrepareOutput("output.checkpoint", output.checkpoint, true));
  ENGINE_RETURN_IF_ERROR(PrepareOutput("output.metrics", output.metrics, false));
  ENGINE_RETURN_IF_ERROR(PrepareOutput("output.trace", output.trace, true));
  if (!output.tensorboard.empty()) {
    ENGINE_RETURN_IF_ERROR(
        command::PrepareFolder(output.tensorboard).WithContext("output.tensorboard"));
  }
  ENGINE_RETURN_IF_ERROR(PrepareOutput("output.best_checkpoint", output.best_checkpoint, true));
  ENGINE_RETURN_IF_ERROR(checkpoint::CheckCanKeep(output.checkpoint, output.keep_checkpoints));
  if (flags.force) return {};
  // A run that goes on has written its best checkpoint itself.
  if (!goes_on) {
    ENGINE_RETURN_IF_ERROR(
        checkpoint::CheckMayReplace("output.best_checkpoint", output.best_checkpoint, 1, ""));
  }
  return checkpoint::CheckMayReplace("output.checkpoint", output.checkpoint,
                                     output.keep_checkpoints, flags.resume);
}

run::MetricsSinks MakeSinks(const config::OutputOptions& output, bool goes_on) {
  using Earlier = run::MetricsFile::Earlier;
  run::MetricsSinks sinks;
  if (!output.metrics.empty()) {
    sinks.push_back(std::make_unique<run::MetricsFile>(
        output.metrics, goes_on ? Earlier::kKeep : Earlier::kReplace));
  }
  if (!output.tensorboard.empty()) {
    sinks.push_back(std::make_unique<run::EventFile>(output.tensorboard));
  }
  return sinks;
}

void StartLog(base::RankContext& member, bool quiet, bool verbose) {
  member.log = launch::MemberLog(member.info, verbose ? LogLevel::kDebug
                                              : quiet ? LogLevel::kWarning
                                                      : LogLevel::kInfo);
}

// Once more after each loss of a rank that the run survives.
Status TrainRank(const config::Config& given, const RunFlags& flags, const launch::LaunchPlan& plan,
                 Progress::Style style, base::RankContext& rank) {
  run::Recovery recovery(given, rank, plan, flags.resume, flags.earlier);
  Result<std::string> from = recovery.Begin();
  // Each is used by those behind it.
  std::optional<config::Config> config;
  run::MetricsSinks sinks;
  std::optional<Progress> progress;
  std::unique_ptr<train::Trainer> trainer;
  const auto train = [&]() -> Status {
    ENGINE_RETURN_IF_ERROR(from.status());
    trainer.reset();
    config = recovery.ConfigNow();
    sinks = MakeSinks(config->output(), recovery.again() || !flags.resume.empty());
    ENGINE_RETURN_IF_ERROR(recovery.Declare());
    progress.emplace(rank.info.rank == 0, flags.quiet, style, sinks);
    const auto sink = [&](std::string_view name, double value) {
      progress->OnPluginMetric(rank.info.rank, name, value);
    };
    ENGINE_ASSIGN_OR_RETURN(trainer,
                            run::MakeTrainer(*config, rank, *progress, sink, *from, &recovery));
    ENGINE_RETURN_IF_ERROR(recovery.OnMade(*trainer));
    if (!recovery.again()) progress->PrintStart(config->run(), rank.info, *trainer);
    return run::RunTraining(*config, rank, *progress, *trainer);
  };
  for (;;) {
    const Status status = train();
    if (!recovery.Survives(status)) return status;
    from = recovery.After(status, trainer);
  }
}

// Before any plugin is there, which counts the processors that it may use.
Status Bind(const std::string& to, base::RankContext& rank, bool joined) {
  if (to == "none") return {};
  const auto binding = to == "core" ? launch::Binding::kCore : launch::Binding::kNuma;
  ENGINE_ASSIGN_OR_RETURN(const std::string done, launch::BindRank(binding, rank.info, joined));
  rank.Log(LogLevel::kInfo, done);
  return {};
}

// What happens to a run that goes on is told as lines of the command, by one process of the run.
std::function<void(const std::string&)> Notices(bool speaks = true) {
  return [speaks, lines = std::make_shared<launch::ErrorLines>()](const std::string& sentence) {
    if (speaks) lines->Write("engine: " + launch::Printable(sentence));
  };
}

// On this process alone, whoever else the launcher has started.
int CheckRun(const config::Config& config, int32_t ranks, const std::string& resume, bool shows) {
  const launch::LaunchPlan plan{
      .mode = launch::LaunchPlan::Mode::kThreads, .info = {}, .source = "one process"};
  const launch::LaunchOutcome outcome = launch::Launch(plan, {}, [&](base::RankContext& rank) {
    command::EndAtFirstSignal();
    // What is said of one rank with the whole batch is not true of several.
    if (ranks == 1) StartLog(rank, /*quiet=*/true, /*verbose=*/false);
    const auto text = run::DryRun(config, rank, ranks, resume);
    if (text.ok() && shows) std::fputs(launch::Printable(*text).c_str(), stdout);
    return text.status();
  });
  return command::ReportOutcome(outcome, /*alone=*/true);
}

}  // namespace

int RunCommand(RunFlags flags, const command::Environment& environment) {
  const auto plan = launch::ResolveLaunch(flags.launch, environment.variables);
  if (!plan.ok()) return command::ReportError(plan.status());
  const bool joins = plan->mode == launch::LaunchPlan::Mode::kJoin;
  const bool speaks = !joins || plan->info.rank == 0;
  const auto notice = Notices(speaks);
  const bool goes_on = !flags.resume.empty();  // with "auto" also where nothing is there yet
  const auto config = LoadRunConfig(environment, plan->info, notice, &flags);
  if (!config.ok()) return command::ReportError(config.status());
  const config::OutputOptions& output = config->output();
  for (const std::string& line : command::ShadowNotices(*config, environment)) notice(line);
  for (const std::string& key : output.dropped) {
    notice(flags.resume + ": what its configuration says of " + key +
           " does not count; give --set " + key + "=FILE to write one");
  }
  if (flags.dry_run) return CheckRun(*config, plan->info.world_size, flags.resume, speaks);
  const Status prepared = PrepareOutputs(output, flags, goes_on);
  if (!prepared.ok()) return command::ReportError(prepared);
  const auto earlier = checkpoint::FindCheckpoints(output.checkpoint);
  std::error_code ignored;
  if (!earlier.empty()) flags.earlier = std::filesystem::last_write_time(earlier[0], ignored);
  // A launcher may bring a terminal of its own and write what it gets to a file.
  const Progress::Style style = Progress::StyleOf(
      flags.progress, isatty(STDOUT_FILENO) == 1 && !joins, environment.variables);
  const launch::LaunchOptions options{
      .rendezvous_timeout_ms = config->run().communication.rendezvous_timeout_ms,
      .liveness_timeout_ms = launch::LivenessTimeoutMs(config->run().communication.timeout_ms),
      .notice = Notices()};  // any process tells how its own work ended
  const launch::LaunchOutcome outcome =
      launch::Launch(*plan, options, [&](base::RankContext& member) -> Status {
        StartLog(member, flags.quiet, flags.verbose);
        ENGINE_ASSIGN_OR_RETURN(const plugins::HostNetwork network,
                                command::NetworkOf(environment, member));
        const config::Config here = config->OnHost(network);
        if (member.info.is_server == 0) {
          ENGINE_RETURN_IF_ERROR(Bind(flags.bind, member, joins));
          return TrainRank(here, flags, *plan, style, member);
        }
        return run::ServeParameters(here, member);
      });
  return command::ReportOutcome(outcome, plan->info.world_size + plan->info.servers == 1);
}

int ConfigCheckCommand(const command::ConfigFlags& flags, const command::Environment& environment) {
  const auto config = command::LoadConfig(flags, environment);
  if (!config.ok()) return command::ReportError(config.status());
  const int code = CheckRun(*config, /*ranks=*/1, /*resume=*/"", /*shows=*/false);
  if (code == 0) {
    std::printf("%s: OK\n", flags.file.empty() ? "built-in default" : flags.file.c_str());
  }
  return code;
}

int ServeCommand(const ServeFlags& flags, const command::Environment& environment) {
  const auto plan =
      launch::ResolveServe(flags.address, flags.index, flags.key_file, flags.insecure);
  if (!plan.ok()) return command::ReportError(plan.status());
  const int64_t wait_ms = int64_t{flags.wait_seconds} * 1000;
  const launch::LaunchOptions options{.rendezvous_timeout_ms = wait_ms, .notice = Notices()};
  const auto folders = command::PluginFolders(flags.plugin, environment);
  if (!folders.ok()) return command::ReportError(folders.status());
  const launch::LaunchOutcome outcome =
      launch::Launch(*plan, options, [&](base::RankContext& member) -> Status {
        StartLog(member, flags.quiet, flags.verbose);
        ENGINE_ASSIGN_OR_RETURN(const config::Config config,
                                run::ConfigOfRun(member, *folders, wait_ms));
        ENGINE_ASSIGN_OR_RETURN(const plugins::HostNetwork network,
                                command::NetworkOf(environment, member));
        return run::ServeParameters(config.OnHost(network), member);
      });
  return command::ReportOutcome(outcome, /*alone=*/true);
}

}  // namespace engine::cli
