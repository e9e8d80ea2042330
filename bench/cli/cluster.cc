#include "bench/cluster/cluster.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "app/plugins/option_value.h"
#include "app/plugins/roles.h"
#include "bench/cli/flags.h"

namespace engine {
namespace {

struct BenchClusterFlags : SweepFlags {
  std::vector<std::string> communicators, schedulers;
  std::vector<std::string> kinds = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
  std::vector<std::string> dtypes = {"float32", "bfloat16"};
  command::ConfigFlags config;
  int64_t steps = 20, warmup = 3;
  double loss_tolerance = 1e-4;
  std::string out;
  bool quiet = false;
};

// Plugins of a kind that need nothing said, but for those that only make sense around others.
std::vector<std::string> Usable(const plugins::PluginCatalog& catalog, PluginKind kind) {
  const std::set<std::string> kLeft = {"null", "record", "by_size"};
  std::vector<std::string> names;
  for (const plugins::PluginFile& file : catalog.files()) {
    if (!file.problem.ok() || file.shadowed || file.kind != kind || kLeft.contains(file.name)) {
      continue;
    }
    const auto options = plugins::OptionsOf(file.options, "");
    const bool needs = std::any_of(options.begin(), options.end(), [](const OptionSpec* option) {
      return plugins::IsRequired(*option);
    });
    if (!needs) names.push_back(file.name);
  }
  return names;
}

Result<bench::ClusterRequest> MakeClusterRequest(const BenchClusterFlags& flags,
                                                 const bench::SweepRequest& sweep,
                                                 const RankInfo& shape,
                                                 const plugins::HostNetwork& network,
                                                 const command::Environment& environment) {
  bench::ClusterRequest request{.sweep = sweep};
  for (const std::string& kind : flags.kinds) request.kinds.push_back(Kinds().at(kind));
  for (const std::string& dtype : flags.dtypes) request.dtypes.push_back(DTypes().at(dtype));
  ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> folders,
                          command::PluginFolders(flags.plugin, environment));
  const plugins::PluginCatalog catalog = plugins::PluginCatalog::Scan(folders);
  const std::vector<std::string> names = flags.communicators.empty()
                                             ? Usable(catalog, PluginKind::kCommunicator)
                                             : flags.communicators;
  const auto find = [folders, network, overrides = flags.config.overrides](
                        const std::string& label, const std::string& plugin,
                        const std::vector<std::string>& more) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    auto contender = bench::FindContender(label, plugin, all, folders, /*leaves_others=*/true);
    if (contender.ok()) plugins::UseNetwork(network, &contender->choice);
    return contender;
  };
  for (const std::string& name : names) {
    ENGINE_ASSIGN_OR_RETURN(const plugins::PluginFile file, catalog.Find(name));
    ENGINE_ASSIGN_OR_RETURN(request.sweep.contenders.emplace_back(), find(file.name, name, {}));
  }
  if (catalog.Find("by_size").ok()) {
    request.by_size = [find](const auto& options) { return find("by_size", "by_size", options); };
  }
  for (const std::string& override : flags.config.overrides) {
    const auto takes = [&](const auto& one) { return bench::Takes(one.choice, override); };
    const auto& all = request.sweep.contenders;
    // With a model they are keys of a configuration.
    if (!flags.config.file.empty() || std::any_of(all.begin(), all.end(), takes)) continue;
    return Status::Error(StatusCode::kConfig,
                         "--set %s is for no plugin that is measured: name one, such as "
                         "tcp.io_threads=4, or give --model",
                         override.c_str());
  }
  const std::vector<config::DefaultPlugin> usual = command::DefaultCommunicators(shape);
  request.default_communicator = usual.back().name;
  if (flags.config.file.empty()) return request;
  bench::ModelRequest& model = request.model.emplace();
  model.warmup = flags.warmup;
  model.loss_tolerance = flags.loss_tolerance;
  model.schedulers =
      flags.schedulers.empty() ? Usable(catalog, PluginKind::kScheduler) : flags.schedulers;
  model.load = [&flags, &environment, network, usual](
                   const auto& plugins, const auto& options) -> Result<config::Config> {
    command::ConfigFlags side = flags.config;
    side.plugin = flags.plugin;
    side.plugins.insert(side.plugins.end(), plugins.begin(), plugins.end());
    for (const auto& more : {options, bench::MeasuringOverrides(flags.warmup + flags.steps)}) {
      side.overrides.insert(side.overrides.end(), more.begin(), more.end());
    }
    ENGINE_ASSIGN_OR_RETURN(const config::Config config,
                            command::LoadConfig(side, environment, usual));
    return config.OnHost(network);
  };
  const auto config = model.load({}, {});  // before minutes are spent on the communicators
  if (!config.ok()) return config.status();
  return request;
}

Status BenchCluster(const BenchClusterFlags& flags, const command::Environment& environment,
                    const bench::SweepRequest& sweep, const bench::SweepConditions& conditions,
                    const plugins::HostNetwork& network, base::RankContext& rank) {
  ENGINE_ASSIGN_OR_RETURN(const bench::ClusterRequest request,
                          MakeClusterRequest(flags, sweep, rank.info, network, environment));
  const bool first = rank.info.rank == 0;
  if (first && !flags.out.empty()) ENGINE_RETURN_IF_ERROR(command::PrepareFolder(flags.out));
  const auto progress = [&](const std::string& line) {
    if (!flags.quiet) std::fprintf(stderr, "%s\n", line.c_str());
  };
  ENGINE_ASSIGN_OR_RETURN(const bench::ClusterResult result,
                          bench::MeasureCluster(request, rank, progress));
  if (!first) return {};
  std::fputs(bench::ClusterText(result, conditions).c_str(), stdout);
  if (!flags.out.empty()) {
    ENGINE_RETURN_IF_ERROR(bench::WriteClusterFiles(result, conditions, flags.out));
    std::printf("report: %s/report.html\n", flags.out.c_str());
  }
  std::fflush(stdout);
  if (result.wrong_in_words.empty()) return {};
  return Status::Error(StatusCode::kPlugin, "%s", result.wrong_in_words.c_str());
}

}  // namespace

void AddBenchCluster(CLI::App& bench, const command::Environment& environment, int* exit_code) {
  CLI::App* cluster = bench.add_subcommand(
      "cluster",
      "Which communicator, scheduler and sizes suit these ranks? Measures and recommends");
  auto flags = std::make_shared<BenchClusterFlags>();
  flags->request.factor = 8;
  flags->request.max_bytes = 8 << 20;
  flags->request.blocks = 3;
  command::AddPlugins(cluster, "--communicators", &flags->communicators,
                      "Contenders (default: all that there are)");
  cluster->add_option("--model", flags->config.file, "Configuration whose steps are measured too")
      ->type_name("CONFIG");
  command::AddPlugins(cluster, "--schedulers", &flags->schedulers,
                      "Contenders for its steps (default: all that there are)");
  command::AddOverrides(cluster, "--set", &flags->config.overrides,
                        "Override a key of every side: --set tcp.io_threads=4; can be repeated");
  AddSweepFlags(cluster, flags.get());
  cluster->add_option("--kinds", flags->kinds, "Operations; the first one decides")
      ->delimiter(',')
      ->check(CLI::IsMember(Kinds()));
  cluster->add_option("--dtypes", flags->dtypes, "Types of elements; the first one decides")
      ->delimiter(',')
      ->check(CLI::IsMember(DTypes()));
  cluster->add_option("--steps", flags->steps, "Steps that are measured, of each run")
      ->check(CLI::Range(int64_t{2}, int64_t{1000000}));
  cluster->add_option("--warmup", flags->warmup, "Steps before them, of each run")
      ->check(CLI::Range(int64_t{0}, int64_t{1000000}));
  cluster
      ->add_option("--loss-tolerance", flags->loss_tolerance,
                   "Losses of one step may differ by so much, relatively")
      ->check(CLI::Range(0.0, 1.0));
  cluster->add_option("--out", flags->out, "Folder for report.html, results.json and best.pbtxt")
      ->type_name("DIR");
  cluster->add_flag("-q,--quiet", flags->quiet, "No line for what begins");
  cluster->footer(
      "Example: srun engine bench cluster --model configs/gpt_text.pbtxt --out report\n"
      "docs/benchmarking.md");
  cluster->callback([flags, &environment, exit_code] {
    // What no rank could do is told once, by nobody's name.
    const auto checked = MakeClusterRequest(*flags, flags->request, {}, {}, environment);
    *exit_code = command::ReportError(checked.status());
    if (!checked.ok()) return;
    *exit_code =
        RunOnRanks(*flags, environment,
                   [&](const auto& request, const auto& conditions, const auto& network,
                       base::RankContext& rank) {
                     return BenchCluster(*flags, environment, request, conditions, network, rank);
                   });
  });
}

}  // namespace engine
