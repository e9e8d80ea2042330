#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "app/config/default_config.h"
#include "bench/cli/flags.h"

namespace engine {
namespace {

struct BenchTrainFlags {
  bench::TrainRequest request;  // as far as it stands among the flags
  bool baseline_null = false, quiet = false;
  double timeout_s = 600;
  launch::LaunchFlags launch;
  std::string profile, out, format = "table";
};

// The configuration as a run of `side` will see it.
Result<config::Config> LoadSide(const bench::TrainRequest& request, const bench::Side& side,
                                const char* name, const command::Environment& environment) {
  command::ConfigFlags flags{.file = request.config_file, .plugins = side.plugins};
  flags.overrides = request.overrides;
  for (const auto& more :
       {side.overrides, bench::MeasuringOverrides(request.warmup + request.steps)}) {
    flags.overrides.insert(flags.overrides.end(), more.begin(), more.end());
  }
  for (const auto* folders : {&side.plugin_folders, &request.plugin_folders}) {
    flags.plugin.folders.insert(flags.plugin.folders.end(), folders->begin(), folders->end());
  }
  const RankInfo shape{.servers = request.servers, .one_host = request.one_host ? 1u : 0u};
  Result<config::Config> config =
      command::LoadConfig(flags, environment, command::DefaultCommunicators(shape));
  if (!config.ok()) return config.status().WithContext("side %s", name);
  return config;
}

// A with the communicator `null` in place of its own, and without the options of that.
bench::Side WithoutCommunication(const bench::Side& a, const config::Config& config) {
  const std::string& name = config.plugins().communicator.entry.name;
  bench::Side side{.plugin_folders = a.plugin_folders};
  for (const std::string& plugin : a.plugins) {
    const auto entry = config.catalog().Find(plugin);
    if (!entry.ok() || entry->kind != PluginKind::kCommunicator) side.plugins.push_back(plugin);
  }
  side.plugins.emplace_back("null");
  for (const std::string& override : a.overrides) {
    if (!override.starts_with(name + ".")) side.overrides.push_back(override);
  }
  return side;
}

// Hosts of emulated links share the cores of this machine and do not know of each other, so that
// each would start as many threads as there are cores. Where the number is left to the op plugin
// it is set.
void ShareCores(const config::Config& config, bench::TrainRequest* request) {
  const int share = std::max(1, ThisMachine().cores / (request->ranks + request->servers));
  for (const plugin::PluginChoice& choice : config.plugins().ops) {
    for (const plugin::OwnedOption& option : choice.options) {
      if (option.name != "threads" || option.type != OptionType::kInt || option.integer != 0) {
        continue;
      }
      request->overrides.push_back(choice.entry.name + ".threads=" + std::to_string(share));
    }
  }
}

Status CheckSides(const BenchTrainFlags& flags) {
  const bench::TrainRequest& request = flags.request;
  if (request.same && request.b.any()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "--aa compares A with itself: leave out --b, --b-set and --b-plugin-path");
  }
  if (!request.same && !request.a.any() && !request.b.any()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "A and B are the same: give --a or --b (for example --b priority_sched), "
                         "or --aa for a control");
  }
  if (!flags.profile.empty() && !request.config_file.empty()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "--profile takes the place of a configuration: leave out %s",
                         request.config_file.c_str());
  }
  return {};
}

Result<bench::TrainRequest> MakeTrainRequest(const BenchTrainFlags& flags,
                                             const std::string& folder,
                                             const command::Environment& environment) {
  ENGINE_RETURN_IF_ERROR(CheckSides(flags));
  bench::TrainRequest request = flags.request;
  request.config_name =
      request.config_file.empty() ? config::kDefaultConfigOrigin : request.config_file;
  if (!flags.profile.empty()) {
    ENGINE_RETURN_IF_ERROR(bench::UseProfile(flags.profile, folder, &request));
  }
  if (request.same) request.b = request.a;
  if (request.target_loss) request.warmup = 0;
  request.timeout_ms = static_cast<int64_t>(flags.timeout_s * 1000);
  request.one_host = request.one_host && request.link.rate.empty();
  ENGINE_ASSIGN_OR_RETURN(const config::Config config_a,
                          LoadSide(request, request.a, "A", environment));
  request.stated = bench::FactsOf(config_a);
  request.model_seed = config_a.run().seed;
  if (!request.link.rate.empty()) ShareCores(config_a, &request);
  const auto config_b = LoadSide(request, request.b, "B", environment);
  if (!config_b.ok()) return config_b.status();
  if (flags.baseline_null) {
    request.null_side = WithoutCommunication(request.a, config_a);
    const auto config = LoadSide(request, *request.null_side, "null", environment);
    if (!config.ok()) return config.status();
  }
  return request;
}

// `rank`: that of a launcher, or null.
Status BenchTrain(const BenchTrainFlags& flags, const command::Environment& environment,
                  base::RankContext* rank) {
  ENGINE_ASSIGN_OR_RETURN(const auto scratch, MakeScratch());
  ENGINE_ASSIGN_OR_RETURN(const bench::TrainRequest request,
                          MakeTrainRequest(flags, scratch->path(), environment));
  bench::Program program{.binary = environment.binary,
                         .environment = environment.variables,
                         .folder = scratch->path(),
                         .rank = rank};
  if (flags.launch.insecure) program.access = {"--insecure"};
  if (!flags.launch.key_file.empty()) program.access = {"--key-file", flags.launch.key_file};
  const bool writes = program.measures() && !flags.out.empty();
  if (writes) ENGINE_RETURN_IF_ERROR(command::PrepareFolder(flags.out));
  const auto progress = [&](const std::string& line) {
    if (!flags.quiet && program.measures()) std::fprintf(stderr, "%s\n", line.c_str());
  };
  ENGINE_ASSIGN_OR_RETURN(const bench::TrainResult result,
                          bench::CompareTraining(request, program, ThisMachine(), progress));
  if (!program.measures()) return {};
  const std::string text = flags.format == "csv"    ? bench::TrainCsv(result)
                           : flags.format == "json" ? bench::TrainJson(result)
                                                    : bench::TrainText(result);
  std::fputs(text.c_str(), stdout);
  if (writes) {
    ENGINE_RETURN_IF_ERROR(bench::WriteTrainFiles(result, flags.out));
    if (flags.format == "table") std::printf("report: %s/report.html\n", flags.out.c_str());
  }
  std::fflush(stdout);
  if (!result.refused) return {};
  return Status::Error(StatusCode::kBadData, "%s", result.sentence.c_str());
}

// Ranks of a launcher are those of every run, each of which is a process of its own.
int BenchTrainCommand(BenchTrainFlags* flags, const command::Environment& environment) {
  const auto plan = launch::ResolveLaunch(flags->launch, environment.variables);
  if (!plan.ok()) return command::ReportError(plan.status());
  bench::TrainRequest& request = flags->request;
  if (plan->mode != launch::LaunchPlan::Mode::kJoin) {
    if (flags->launch.world_size > 0) request.ranks = flags->launch.world_size;
    const launch::StopSignals end_by_signal;  // when nothing is left behind
    return command::ReportError(BenchTrain(*flags, environment, nullptr));
  }
  if (request.servers > 0 || !request.link.rate.empty()) {
    return command::ReportError(Status::Error(
        StatusCode::kInvalidArgument,
        "--servers and --link are for ranks that this command starts, and %s has started them: "
        "drop these flags, or ignore the environment with --launcher none",
        plan->source.c_str()));
  }
  request.ranks = plan->info.world_size;
  request.one_host = plan->info.one_host != 0;
  // The run of a rank ends by itself when that of another fails.
  const launch::LaunchOptions options{.grace_ms = bench::kGrace.count()};
  return command::ReportOutcome(launch::Launch(*plan, options, [&](base::RankContext& rank) {
    return BenchTrain(*flags, environment, &rank);
  }));
}

void AddTrainNumbers(CLI::App* app, BenchTrainFlags* flags) {
  bench::TrainRequest& request = flags->request;
  app->add_option("--servers", request.servers,
                  "Parameter servers of their own, as in engine run; with --link each on a host of "
                  "its own, behind a link of the same rate")
      ->check(CLI::Range(0, 64));
  app->add_option("--steps", request.steps, "Steps that are measured, of each run")
      ->check(CLI::Range(int64_t{2}, int64_t{1000000}));
  app->add_option("--warmup", request.warmup, "Steps before them, of each run")
      ->check(CLI::Range(int64_t{0}, int64_t{1000000}));
  app->add_option("--target-loss", request.target_loss,
                  "Compare the time until the training loss, a mean of 20 steps, is at most this; "
                  "runs take at most --steps, each pair from a seed of its own")
      ->needs("--steps")
      ->excludes("--warmup")
      ->excludes("--baseline-null");
  app->add_option("--blocks", request.blocks, "Blocks of four runs, A B B A")
      ->check(CLI::Range(1, 1000));
  app->add_option("--loss-tolerance", request.loss_tolerance,
                  "Losses of one step may differ by so much, relatively")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--seed", request.seed, "Of the bootstrap")->capture_default_str();
  app->add_option("--timeout", flags->timeout_s, "Seconds that one run may take")
      ->check(CLI::Range(0.1, 1e6));
}

}  // namespace

void AddBenchTrain(CLI::App& bench, const command::Environment& environment, int* exit_code) {
  CLI::App* train = bench.add_subcommand(
      "train", "Compare whole training runs: which side takes less time for a step?");
  auto flags = std::make_shared<BenchTrainFlags>();
  bench::TrainRequest& request = flags->request;
  train->add_option("config", request.config_file, "Configuration file (default: the built-in one)")
      ->type_name("FILE");
  AddSideFlags(train, "a", &request.a, true);
  AddSideFlags(train, "b", &request.b, true);
  train->add_flag("--aa", request.same,
                  "A against itself: a control, which must find no difference");
  train->add_flag("--baseline-null", flags->baseline_null,
                  "Also run A without communication, for the time that computing takes");
  command::AddOverrides(
      train, "--set", &request.overrides,
      "Override a key for both sides: --set train.batch_per_rank=8; can be repeated");
  command::AddPluginFolders(train, "--plugin-path", &request.plugin_folders);
  train
      ->add_option("-n,--ranks", flags->launch.world_size,
                   "Number of ranks on this machine (default: those of the launcher, or 2)")
      ->check(CLI::Range(1, 4096));
  command::AddLauncher(train, &flags->launch);
  command::AddAccessFlags(train, &flags->launch.key_file, &flags->launch.insecure);
  train->option_defaults()->always_capture_default();
  AddTrainNumbers(train, flags.get());
  AddLinkFlags(train, &request.link);
  train
      ->add_option(
          "--profile", flags->profile,
          "In place of CONFIG: layer times of a known network; computing is a sleep, which "
          "--set profile_ops.time_scale and size_scale change")
      ->type_name("NAME");
  train->add_option("--out", flags->out, "Folder for report.html, results.csv and results.json")
      ->type_name("DIR");
  train->add_option("--format", flags->format, "What to print: table, csv, json")
      ->check(CLI::IsMember({"table", "csv", "json"}));
  train->add_flag("-q,--quiet", flags->quiet, "No line for each run");
  train->footer(
      "Example: engine bench train configs/synthetic.pbtxt -n 2 --a fifo_sched --b priority_sched\n"
      "Exit code 65: losses differ, or --target-loss was not reached: there is no conclusion. "
      "docs/benchmarking.md");
  train->callback([flags, &environment, exit_code] {
    *exit_code = BenchTrainCommand(flags.get(), environment);
  });
}

}  // namespace engine
