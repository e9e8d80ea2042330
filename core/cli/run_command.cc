#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "core/cli/commands.h"
#include "core/cli/progress.h"
#include "core/launch/log.h"
#include "core/train/trainer.h"

namespace engine {
namespace {

// Makes the folder of an output file and makes sure that it can be written, before hours of
// training. `replaced`: by renaming a new file, which would put it in the place of a device or
// pipe.
Status PrepareOutput(const char* key, const std::string& path, bool replaced) {
  if (path.empty()) return {};
  const auto refuse = [&](const char* what, const std::string& where, const char* why) {
    return Status::Error(StatusCode::kStorage, "%s: %s %s: %s", key, what, where.c_str(), why);
  };
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return refuse("cannot make the folder", folder, error.message().c_str());
  const std::filesystem::file_status file = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(file)) {
    return refuse("cannot write to", path, "it is a folder; name a file");
  }
  if (std::filesystem::is_other(file)) {
    return replaced ? refuse("cannot replace", path, "it is no regular file") : Status();
  }
  // Permission bits do not tell: of a read-only file system, or to root.
  const std::string where = folder.empty() ? "." : folder.string();
  std::string probe = where + "/.engine-probe-XXXXXX";
  const int fd = mkostemp(probe.data(), O_CLOEXEC);
  if (fd < 0) return refuse("cannot write into", where, strerror(errno));
  close(fd);
  unlink(probe.c_str());
  return {};
}

Status TrainRank(const Config& config, const RunFlags& flags, MetricsFile* metrics_of_first,
                 RankContext& rank) {
  const bool first = rank.info.rank == 0;
  auto logger = MakeRankLogger(rank.info.rank, rank.info.world_size,
                               flags.verbose ? spdlog::level::debug
                               : flags.quiet ? spdlog::level::warn
                                             : spdlog::level::info);
  MetricsFile* const metrics = first ? metrics_of_first : nullptr;
  Progress progress(first, flags.quiet, isatty(STDOUT_FILENO) == 1, metrics);
  const auto sink = [&](std::string_view name, double value) {
    if (metrics != nullptr) (void)metrics->WritePluginMetric(rank.info.rank, name, value);
  };
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                          Trainer::Create(config, rank, logger, progress, sink));
  return trainer->Run();
}

}  // namespace

int RunCommand(const RunFlags& flags, const Environment& environment) {
  const auto plan = ResolveLaunch(flags.launch, environment.variables);
  if (!plan.ok()) return ReportError(plan.status());
  const auto config = LoadConfig(flags.config, environment);
  if (!config.ok()) return ReportError(config.status());
  const config::Output& output = config->proto().output();
  for (const Status& prepared : {PrepareOutput("output.checkpoint", output.checkpoint(), true),
                                 PrepareOutput("output.metrics", output.metrics(), false),
                                 PrepareOutput("output.trace", output.trace(), true)}) {
    if (!prepared.ok()) return ReportError(prepared);
  }
  // Opened before any rank reads its data, which may lie in the same folder.
  std::unique_ptr<MetricsFile> metrics;
  if (!output.metrics().empty() &&
      (plan->mode != LaunchPlan::Mode::kJoin || plan->info.rank == 0)) {
    auto opened = MetricsFile::Open(output.metrics());
    if (!opened.ok()) return ReportError(opened.status());
    metrics = std::move(*opened);
  }
  const LaunchOptions options{.rendezvous_timeout_ms =
                                  config->proto().communication().rendezvous_timeout_ms()};
  const LaunchOutcome outcome = Launch(*plan, options, [&](RankContext& rank) {
    return TrainRank(*config, flags, metrics.get(), rank);
  });
  if (!outcome.status.ok() && outcome.report) ReportError(outcome.status);
  return outcome.exit_code;
}

}  // namespace engine
