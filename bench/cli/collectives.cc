#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/launch/launch.h"
#include "app/launch/log.h"
#include "bench/cli/flags.h"

namespace engine {
namespace {

constexpr int32_t kDefaultRanks = 2;  // one has nobody to talk to

struct BenchCollectivesFlags {
  std::string a, b;
  bench::Side a_more, b_more;
  command::PluginFlags plugin;
  launch::LaunchFlags launch;
  bench::SweepRequest request;
  double timeout_s = 30;
  bench::LinkOptions link;
  std::string kind = "all_reduce", format = "table";
};

const std::map<std::string, TransferKind>& Kinds() {
  static const std::map<std::string, TransferKind> kinds = {
      {"all_reduce", TransferKind::kAllReduce},
      {"reduce_scatter", TransferKind::kReduceScatter},
      {"all_gather", TransferKind::kAllGather},
      {"broadcast", TransferKind::kBroadcast}};
  return kinds;
}

Result<bench::SweepRequest> MakeSweepRequest(const BenchCollectivesFlags& flags,
                                             const command::Environment& environment) {
  bench::SweepRequest request = flags.request;
  request.kind = Kinds().at(flags.kind);
  if (request.min_bytes > request.max_bytes) {
    return Status::Error(
        StatusCode::kInvalidArgument, "--min-bytes %lld is more than --max-bytes %lld",
        static_cast<long long>(request.min_bytes), static_cast<long long>(request.max_bytes));
  }
  request.timeout_ms = static_cast<int64_t>(flags.timeout_s * 1000);
  const std::pair<const std::string&, const bench::Side&> sides[] = {{flags.a, flags.a_more},
                                                                     {flags.b, flags.b_more}};
  for (size_t i = 0; i < std::size(sides); ++i) {
    const auto& [plugin, more] = sides[i];
    if (plugin.empty()) continue;
    command::PluginFlags plugin_flags;
    plugin_flags.folders = more.plugin_folders;
    plugin_flags.folders.insert(plugin_flags.folders.end(), flags.plugin.folders.begin(),
                                flags.plugin.folders.end());
    ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> folders,
                            command::PluginFolders(plugin_flags, environment));
    ENGINE_ASSIGN_OR_RETURN(
        bench::Contender contender,
        bench::FindContender(i == 0 ? "A" : "B", plugin, more.overrides, folders));
    request.contenders.push_back(std::move(contender));
  }
  return request;
}

// What rank 0 prints while the sweep goes on, and at its end.
class SweepPrinter {
 public:
  SweepPrinter(const std::string& format, const bench::SweepRequest& request,
               const bench::SweepConditions& conditions)
      : format_(format), request_(request), conditions_(conditions) {}

  void Begin() const {
    if (format_ == "table") Print(bench::TableHead(request_, conditions_));
    if (StreamsNccl()) Print(NcclHead(request_, conditions_, 0));
  }
  void Row(const bench::SweepRow& row) const {
    if (format_ == "table") Print(TableRow(row));
    if (StreamsNccl()) Print(NcclRow(request_, row, 0));
  }
  void End(const bench::SweepResult& result) const {
    if (format_ == "table") Print(TableFoot(request_, result));
    if (format_ == "csv") Print(SweepCsv(request_, conditions_, result));
    if (format_ == "json") Print(SweepJson(request_, conditions_, result));
    if (format_ != "nccl-tests") return;
    if (StreamsNccl()) return Print(NcclFoot(result, 0));
    for (size_t i = 0; i < request_.contenders.size(); ++i) {  // one table after the other
      Print(NcclHead(request_, conditions_, i));
      for (const bench::SweepRow& row : result.rows) Print(NcclRow(request_, row, i));
      Print(NcclFoot(result, i));
    }
  }

 private:
  bool StreamsNccl() const { return format_ == "nccl-tests" && request_.contenders.size() == 1; }
  static void Print(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  const std::string& format_;
  const bench::SweepRequest& request_;
  const bench::SweepConditions& conditions_;
};

Status SweepRank(const BenchCollectivesFlags& flags, bench::SweepRequest request,
                 const bench::SweepConditions& conditions, const command::Environment& environment,
                 base::RankContext& rank) {
  const bool first = rank.info.rank == 0;
  rank.log = launch::MemberLog(rank.info);
  rank.info.transfer_timeout_ms = request.timeout_ms;
  ENGINE_ASSIGN_OR_RETURN(const plugins::HostNetwork network,
                          command::NetworkOf(environment, rank));
  for (bench::Contender& contender : request.contenders) {
    plugins::UseNetwork(network, &contender.choice);
  }
  const SweepPrinter printer(flags.format, request, conditions);
  if (first) printer.Begin();
  ENGINE_ASSIGN_OR_RETURN(
      const bench::SweepResult result,
      bench::RunSweep(request, rank, [&](const bench::SweepRow& row) { printer.Row(row); }));
  if (!first) return {};
  printer.End(result);
  if (result.wrong == 0) return {};
  return Status::Error(StatusCode::kPlugin, "%s", result.wrong_in_words.c_str());
}

// This command once more, as a rank behind a link: of flags that are given twice the last counts. Its
// rank comes from the environment, and nobody else is in its network.
std::vector<std::string> CommandOfALinkedRank(const std::string& binary) {
  std::vector<std::string> words = CommandLineOfThisProcess();
  words[0] = binary;
  words.insert(words.end(),
               {"--link", "", "--launcher", "torchrun", "--key-file", "", "--insecure"});
  return words;
}

int BenchCollectives(const BenchCollectivesFlags& flags, const command::Environment& environment) {
  const auto request = MakeSweepRequest(flags, environment);
  if (!request.ok()) return command::ReportError(request.status());
  if (!flags.link.rate.empty()) {
    bench::LinkOptions link = flags.link;
    link.hosts = flags.launch.world_size > 0 ? flags.launch.world_size : kDefaultRanks;
    return RunOnHosts(CommandOfALinkedRank(environment.binary), link, environment,
                      /*timeout_s=*/3600);
  }
  auto plan = launch::ResolveLaunch(flags.launch, environment.variables);
  const bool asked = flags.launch.world_size > 0;
  if (plan.ok() && !asked && plan->mode == launch::LaunchPlan::Mode::kSpawn) {
    plan->info.world_size = plan->info.local_world_size = kDefaultRanks;
    plan->source = "default";
  }
  if (!plan.ok()) return command::ReportError(plan.status());
  const bench::SweepConditions conditions{plan->info.world_size, plan->source, ThisMachine()};
  const launch::LaunchOutcome outcome = launch::Launch(*plan, {}, [&](base::RankContext& rank) {
    return SweepRank(flags, *request, conditions, environment, rank);
  });
  return command::ReportOutcome(outcome);
}

void AddSweepFlags(CLI::App* app, BenchCollectivesFlags* flags) {
  app->add_option("--kind", flags->kind, "all_reduce, reduce_scatter, all_gather, broadcast")
      ->check(CLI::IsMember(Kinds()));
  const CLI::Range sizes(int64_t{4}, int64_t{1} << 34);
  app->add_option("--min-bytes", flags->request.min_bytes, "Smallest size: 4, 64K, 64M, 1G")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(sizes);
  app->add_option("--max-bytes", flags->request.max_bytes, "Largest size")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(sizes);
  app->add_option("--factor", flags->request.factor, "From one size to the next")
      ->check(CLI::Range(1.01, 1e6));
  app->add_option("--seconds", flags->request.seconds,
                  "Time to measure each size, communicator and placement")
      ->check(CLI::Range(0.001, 3600.0));
  app->add_option("--blocks", flags->request.blocks,
                  "Blocks of four turns, A B B A, for each size; each turn connects anew")
      ->check(CLI::Range(1, 1000));
  app->add_option("--timeout", flags->timeout_s, "Seconds that one collective may take")
      ->check(CLI::Range(0.1, 1e5));
  app->add_option("--seed", flags->request.seed, "Of the bootstrap")->capture_default_str();
}

}  // namespace

void AddBenchCollectives(CLI::App& bench, const command::Environment& environment, int* exit_code) {
  CLI::App* collectives = bench.add_subcommand(
      "collectives", "Time collectives of rising size through one communicator or two");
  auto flags = std::make_shared<BenchCollectivesFlags>();
  flags->launch.world_size = 0;
  collectives->add_option("--a", flags->a, "Communicator: a name, or the path of a library")
      ->required()
      ->type_name("NAME|FILE");
  collectives->add_option("--b", flags->b, "Another one, or the same with other options")
      ->type_name("NAME|FILE");
  AddSideFlags(collectives, "a", &flags->a_more, false);
  AddSideFlags(collectives, "b", &flags->b_more, false);
  command::AddPluginFolders(collectives, "--plugin-path", &flags->plugin.folders);
  collectives
      ->add_option("-n,--ranks", flags->launch.world_size,
                   "Number of ranks on this machine (default: those of the launcher, or 2)")
      ->check(CLI::Range(1, bench::kMaxCheckedRanks));
  command::AddLauncher(collectives, &flags->launch);
  command::AddAccessFlags(collectives, &flags->launch.key_file, &flags->launch.insecure);
  collectives->option_defaults()->always_capture_default();
  AddSweepFlags(collectives, flags.get());
  AddLinkFlags(collectives, &flags->link);
  for (const char* flag : {"--link", "--launcher", "--key-file"}) {
    collectives->get_option(flag)->take_last();  // see CommandOfALinkedRank
  }
  collectives->add_option("--format", flags->format, "What to print: table, nccl-tests, csv, json")
      ->check(CLI::IsMember({"table", "nccl-tests", "csv", "json"}));
  collectives->footer(
      "Example: engine bench collectives -n 2 --a tcp --b ./libengine_mine.so\n"
      "Exit code 79: a communicator gave a wrong result. docs/benchmarking.md");
  collectives->callback(
      [flags, &environment, exit_code] { *exit_code = BenchCollectives(*flags, environment); });
}

}  // namespace engine
