#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/checkpoint/atomic_file.h"
#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/retention.h"
#include "app/cli/commands.h"
#include "app/cli/progress.h"
#include "app/launch/log.h"
#include "app/run/serve.h"
#include "app/run/training.h"

namespace engine::cli {
namespace {

// Makes the folder of an output file and makes sure that it can be written, before hours of
// training. `replaced`: by renaming a new file, which would put it in the place of a device or
// pipe.
Status PrepareOutput(const char* key, const std::string& path, bool replaced) {
  if (path.empty()) return {};
  const auto refuse = [&](const char* what, const char* why) {
    return Status::Error(StatusCode::kStorage, "%s: %s %s: %s", key, what, path.c_str(), why);
  };
  std::error_code ignored;
  const std::filesystem::file_status file = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(file)) {
    return refuse("cannot write to", "it is a folder; name a file");
  }
  if (std::filesystem::is_other(file)) {
    return replaced ? refuse("cannot replace", "it is no regular file") : Status();
  }
  const std::string folder = std::filesystem::path(path).parent_path();
  ENGINE_RETURN_IF_ERROR(
      command::PrepareFolder(folder.empty() ? "." : folder).WithContext("%s", key));
  // The name of its temporary file is longer than its own.
  return replaced ? checkpoint::AtomicFile::Create(path).status().WithContext("%s", key) : Status();
}

// The configuration of `flags`; of a run that goes on and names no file, that of its checkpoint.
Result<config::Config> LoadRunConfig(const RunFlags& flags, const command::Environment& environment,
                                     const RankInfo& shape) {
  const std::vector<config::DefaultPlugin> communicators = command::DefaultCommunicators(shape);
  if (flags.resume.empty()) return command::LoadConfig(flags.config, environment, communicators);
  // Looked at in any case, so that a file that is missing or damaged is told once and at once.
  ENGINE_ASSIGN_OR_RETURN(const checkpoint::OpenedCheckpoint checkpoint,
                          checkpoint::OpenCheckpoint(flags.resume));
  if (!flags.config.file.empty())
    return command::LoadConfig(flags.config, environment, communicators);
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

void StartLog(base::RankContext& member, bool quiet, bool verbose) {
  member.log = launch::MemberLog(member.info, verbose ? LogLevel::kDebug
                                              : quiet ? LogLevel::kWarning
                                                      : LogLevel::kInfo);
}

Status TrainRank(const config::Config& config, const RunFlags& flags,
                 run::MetricsFile* metrics_of_first, base::RankContext& rank) {
  const bool first = rank.info.rank == 0;
  run::MetricsFile* const metrics = first ? metrics_of_first : nullptr;
  Progress progress(first, flags.quiet, isatty(STDOUT_FILENO) == 1, metrics);
  const auto sink = [&](std::string_view name, double value) {
    if (metrics != nullptr) (void)metrics->WritePluginMetric(rank.info.rank, name, value);
  };
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<train::Trainer> trainer,
                          run::MakeTrainer(config, rank, progress, sink, flags.resume));
  progress.PrintStart(config.run(), rank.info, *trainer);
  return run::RunTraining(config, rank, progress, *trainer);
}

// What happens to a run that goes on is told as lines of the command.
std::function<void(const std::string&)> Notices() {
  return [lines = std::make_shared<launch::ErrorLines>()](const std::string& sentence) {
    lines->Write("engine: " + launch::Printable(sentence));
  };
}

}  // namespace

int RunCommand(const RunFlags& flags, const command::Environment& environment) {
  const auto plan = launch::ResolveLaunch(flags.launch, environment.variables);
  if (!plan.ok()) return command::ReportError(plan.status());
  const auto config = LoadRunConfig(flags, environment, plan->info);
  if (!config.ok()) return command::ReportError(config.status());
  const config::OutputOptions& output = config->output();
  const auto notice = Notices();
  const bool speaks = plan->mode != launch::LaunchPlan::Mode::kJoin || plan->info.rank == 0;
  if (speaks) {
    for (const std::string& line : command::ShadowNotices(*config, environment)) notice(line);
  }
  for (const std::string& key : output.dropped) {
    notice(flags.resume + ": what its configuration says of " + key +
           " does not count; give --set " + key + "=FILE to write one");
  }
  for (const Status& prepared : {PrepareOutput("output.checkpoint", output.checkpoint, true),
                                 PrepareOutput("output.metrics", output.metrics, false),
                                 PrepareOutput("output.trace", output.trace, true)}) {
    if (!prepared.ok()) return command::ReportError(prepared);
  }
  // Opened before any rank reads its data, which may lie in the same folder.
  std::unique_ptr<run::MetricsFile> metrics;
  if (!output.metrics.empty() && speaks) {
    auto opened = run::MetricsFile::Open(output.metrics, flags.resume.empty()
                                                             ? run::MetricsFile::Earlier::kReplace
                                                             : run::MetricsFile::Earlier::kKeep);
    if (!opened.ok()) return command::ReportError(opened.status());
    metrics = std::move(*opened);
  }
  const launch::LaunchOptions options{
      .rendezvous_timeout_ms = config->run().communication.rendezvous_timeout_ms,
      .liveness_timeout_ms = launch::LivenessTimeoutMs(config->run().communication.timeout_ms),
      .notice = notice};
  const launch::LaunchOutcome outcome =
      launch::Launch(*plan, options, [&](base::RankContext& member) -> Status {
        StartLog(member, flags.quiet, flags.verbose);
        if (member.info.is_server == 0) return TrainRank(*config, flags, metrics.get(), member);
        return run::ServeParameters(*config, member);
      });
  return command::ReportOutcome(outcome);
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
        return run::ServeParameters(config, member);
      });
  return command::ReportOutcome(outcome);
}

}  // namespace engine::cli
