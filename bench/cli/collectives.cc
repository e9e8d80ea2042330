#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/command/amount.h"
#include "app/launch/launch.h"
#include "app/launch/log.h"
#include "bench/cli/flags.h"

namespace engine {
namespace {

struct BenchCollectivesFlags {
  std::string a, b;
  SideFlags a_more, b_more;
  command::PluginFlags plugin;
  launch::LaunchFlags launch;
  std::string kind = "all_reduce", min_bytes = "4", max_bytes = "64M";
  bench::SweepRequest request;
  double timeout_s = 30;
  LinkFlags link;
  std::string format = "table";
};

// "4", "64K", "64M", "1G": of 1024.
Result<int64_t> ParseBytes(const char* flag, const std::string& text) {
  ENGINE_ASSIGN_OR_RETURN(const double bytes,
                          command::ParseAmount(flag, text,
                                               {{"", 1},
                                                {"b", 1},
                                                {"k", 0x1p10},
                                                {"kb", 0x1p10},
                                                {"m", 0x1p20},
                                                {"mb", 0x1p20},
                                                {"g", 0x1p30},
                                                {"gb", 0x1p30}},
                                               /*least=*/4, /*most=*/0x1p34,
                                               "size: write 4, 64K, 64M or 1G, from 4 to 16G"));
  return static_cast<int64_t>(bytes);
}

Result<bench::SweepRequest> MakeSweepRequest(const BenchCollectivesFlags& flags,
                                             const command::Environment& environment) {
  bench::SweepRequest request = flags.request;
  const std::vector<std::pair<std::string, TransferKind>> kinds = {
      {"all_reduce", TransferKind::kAllReduce},
      {"reduce_scatter", TransferKind::kReduceScatter},
      {"all_gather", TransferKind::kAllGather},
      {"broadcast", TransferKind::kBroadcast}};
  for (const auto& [name, kind] : kinds) {
    if (name == flags.kind) request.kind = kind;
  }
  ENGINE_ASSIGN_OR_RETURN(request.min_bytes, ParseBytes("--min-bytes", flags.min_bytes));
  ENGINE_ASSIGN_OR_RETURN(request.max_bytes, ParseBytes("--max-bytes", flags.max_bytes));
  if (request.min_bytes > request.max_bytes) {
    return Status::Error(StatusCode::kInvalidArgument, "--min-bytes %s is more than --max-bytes %s",
                         flags.min_bytes.c_str(), flags.max_bytes.c_str());
  }
  request.timeout_ms = static_cast<int64_t>(flags.timeout_s * 1000);
  const std::pair<const std::string&, const SideFlags&> sides[] = {{flags.a, flags.a_more},
                                                                   {flags.b, flags.b_more}};
  for (size_t i = 0; i < std::size(sides); ++i) {
    const auto& [plugin, more] = sides[i];
    if (plugin.empty()) continue;
    command::PluginFlags plugin_flags;
    plugin_flags.folders = more.folders;
    plugin_flags.folders.insert(plugin_flags.folders.end(), flags.plugin.folders.begin(),
                                flags.plugin.folders.end());
    ENGINE_ASSIGN_OR_RETURN(
        bench::Contender contender,
        bench::FindContender(i == 0 ? "A" : "B", plugin, more.overrides,
                             command::PluginFolders(plugin_flags, environment)));
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
    if (format_ == "table") Print(TableHead(request_, conditions_));
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

Status SweepRank(const BenchCollectivesFlags& flags, const bench::SweepRequest& request,
                 const bench::SweepConditions& conditions, base::RankContext& rank) {
  const bool first = rank.info.rank == 0;
  rank.log = launch::MemberLog(rank.info);
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

// The words of this command without the flags that a rank behind a link does not get: its rank
// comes from the environment.
std::vector<std::string> WordsOfALinkedRank(const std::vector<std::string>& words) {
  const std::string dropped[] = {"--link",  "--congestion", "-n",
                                 "--ranks", "--launcher",   "--key-file"};
  std::vector<std::string> kept;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool with_next =
        std::find(std::begin(dropped), std::end(dropped), word) != std::end(dropped);
    const bool joined = std::any_of(std::begin(dropped), std::end(dropped), [&](const auto& flag) {
      const bool is_short = flag.size() == 2;
      return word.size() > flag.size() && word.starts_with(is_short ? flag : flag + "=");
    });
    if (with_next) ++i;
    if (!with_next && !joined) kept.push_back(word);
  }
  // Nobody else is in their network.
  kept.insert(kept.end(), {"--launcher", "torchrun", "--insecure"});
  return kept;
}

int BenchCollectives(const BenchCollectivesFlags& flags, const command::Environment& environment) {
  const auto request = MakeSweepRequest(flags, environment);
  if (!request.ok()) return command::ReportError(request.status());
  if (!flags.link.rate.empty()) {
    constexpr int64_t kAllMs = 3600 * 1000;
    return RunOnHosts(environment.binary, WordsOfALinkedRank(CommandLineOfThisProcess()),
                      std::max(1, flags.launch.world_size), flags.link, environment, kAllMs);
  }
  const auto plan = launch::ResolveLaunch(flags.launch, environment.variables);
  if (!plan.ok()) return command::ReportError(plan.status());
  const bench::SweepConditions conditions{plan->info.world_size, plan->source, ThisMachine()};
  const launch::LaunchOutcome outcome = launch::Launch(*plan, {}, [&](base::RankContext& rank) {
    return SweepRank(flags, *request, conditions, rank);
  });
  return command::ReportOutcome(outcome);
}

void AddSweepFlags(CLI::App* app, BenchCollectivesFlags* flags) {
  app->add_option("--kind", flags->kind, "all_reduce, reduce_scatter, all_gather, broadcast")
      ->check(CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather", "broadcast"}));
  app->add_option("--min-bytes", flags->min_bytes, "Smallest size")->type_name("SIZE");
  app->add_option("--max-bytes", flags->max_bytes, "Largest size")->type_name("SIZE");
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
  collectives->add_option("-n,--ranks", flags->launch.world_size, "Number of ranks on this machine")
      ->check(CLI::Range(1, bench::kMaxCheckedRanks));
  command::AddLauncher(collectives, &flags->launch);
  command::AddAccessFlags(collectives, &flags->launch.key_file, &flags->launch.insecure);
  collectives->option_defaults()->always_capture_default();
  AddSweepFlags(collectives, flags.get());
  AddLinkFlags(collectives, &flags->link);
  collectives->add_option("--format", flags->format, "What to print: table, nccl-tests, csv, json")
      ->check(CLI::IsMember({"table", "nccl-tests", "csv", "json"}));
  collectives->footer(
      "Example: engine bench collectives -n 2 --a tcp --b ./libengine_mine.so\n"
      "Exit code 79: a communicator gave a wrong result. docs/benchmarking.md");
  collectives->callback(
      [flags, &environment, exit_code] { *exit_code = BenchCollectives(*flags, environment); });
}

}  // namespace engine
