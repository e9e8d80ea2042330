#include <CLI/CLI.hpp>
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

struct BenchCollectivesFlags : SweepFlags {
  std::string a, b;
  bench::Side a_more, b_more;
  std::string kind = "all_reduce", dtype = "float32", format = "table";
};

}  // namespace

const std::map<std::string, TransferKind>& Kinds() {
  static const std::map<std::string, TransferKind> kinds = {
      {"all_reduce", TransferKind::kAllReduce},
      {"reduce_scatter", TransferKind::kReduceScatter},
      {"all_gather", TransferKind::kAllGather},
      {"broadcast", TransferKind::kBroadcast}};
  return kinds;
}

const std::map<std::string, DType>& DTypes() {
  static const std::map<std::string, DType> dtypes = [] {
    std::map<std::string, DType> by_name;
    for (int dtype = 0; dtype <= static_cast<int>(DType::kFloat16); ++dtype) {
      by_name[Name(static_cast<DType>(dtype))] = static_cast<DType>(dtype);
    }
    return by_name;
  }();
  return dtypes;
}

namespace {

Result<bench::SweepRequest> MakeSweepRequest(const BenchCollectivesFlags& flags,
                                             const command::Environment& environment) {
  bench::SweepRequest request = flags.request;
  request.kind = Kinds().at(flags.kind);
  request.dtype = DTypes().at(flags.dtype);
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

Status SweepRank(const BenchCollectivesFlags& flags, const bench::SweepRequest& request,
                 const bench::SweepConditions& conditions, base::RankContext& rank) {
  const bool first = rank.info.rank == 0;
  const SweepPrinter printer(flags.format, request, conditions);
  if (first) printer.Begin();
  bench::Sessions sessions(rank);
  ENGINE_ASSIGN_OR_RETURN(
      const bench::SweepResult result,
      bench::RunSweep(request, sessions, [&](const bench::SweepRow& row) { printer.Row(row); }));
  for (const Status& failure : result.failures) ENGINE_RETURN_IF_ERROR(failure);
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

// The launcher's ranks, else those of -n, else two.
Result<launch::LaunchPlan> ResolveRanks(const command::Environment& environment,
                                        SweepFlags* flags) {
  const int asked = flags->ranks;
  launch::LaunchFlags& launch = flags->launch;
  const auto given = launch::ResolveLaunch(launch, environment.variables);
  const bool joins = given.ok() && given->mode == launch::LaunchPlan::Mode::kJoin;
  // nccl-tests' -n, beside ranks that the launcher has numbered.
  if (joins && asked > 0 && asked != given->info.world_size) flags->request.iterations = asked;
  if (joins || !given.ok()) return given;
  launch.world_size = asked > 0 ? asked : kDefaultRanks;
  auto plan = launch::ResolveLaunch(launch, environment.variables);
  if (plan.ok() && asked == 0) plan->source = "default";
  return plan;
}

}  // namespace

int RunOnRanks(SweepFlags flags, const command::Environment& environment, const RanksBody& body) {
  bench::SweepRequest& request = flags.request;
  if (request.min_bytes > request.max_bytes) {
    return command::ReportError(Status::Error(
        StatusCode::kInvalidArgument, "--min-bytes %lld is more than --max-bytes %lld",
        static_cast<long long>(request.min_bytes), static_cast<long long>(request.max_bytes)));
  }
  if (!flags.link.rate.empty()) {
    bench::LinkOptions link = flags.link;
    link.hosts = flags.ranks > 0 ? flags.ranks : kDefaultRanks;
    return RunOnHosts(CommandOfALinkedRank(environment.binary), link, environment,
                      /*timeout_s=*/3600);
  }
  const auto plan = ResolveRanks(environment, &flags);
  if (!plan.ok()) return command::ReportError(plan.status());
  request.timeout_ms = static_cast<int64_t>(flags.timeout_s * 1000);
  const bench::SweepConditions conditions{plan->info.world_size, plan->source, ThisMachine()};
  const launch::LaunchOutcome outcome =
      launch::Launch(*plan, {}, [&](base::RankContext& rank) -> Status {
        rank.log = launch::MemberLog(rank.info);
        rank.info.transfer_timeout_ms = rank.info.rendezvous_timeout_ms = request.timeout_ms;
        ENGINE_ASSIGN_OR_RETURN(const plugins::HostNetwork network,
                                command::NetworkOf(environment, rank));
        bench::SweepRequest here = request;
        for (bench::Contender& contender : here.contenders) {
          plugins::UseNetwork(network, &contender.choice);
        }
        return body(here, conditions, network, rank);
      });
  return command::ReportOutcome(outcome);
}

void AddSweepFlags(CLI::App* app, SweepFlags* flags) {
  command::AddPluginFolders(app, "--plugin-path", &flags->plugin.folders);
  app->add_option("-n,--ranks", flags->ranks,
                  "Number of ranks on this machine (default: 2); under a launcher, whose ranks are "
                  "used, the --iterations")
      ->check(CLI::Range(1, 1000000));
  command::AddLauncher(app, &flags->launch);
  command::AddAccessFlags(app, &flags->launch.key_file, &flags->launch.insecure);
  app->option_defaults()->always_capture_default();
  bench::SweepRequest& request = flags->request;
  const CLI::Range sizes(int64_t{4}, int64_t{1} << 34);
  app->add_option("-b,--min-bytes", request.min_bytes, "Smallest size: 4, 64K, 64M, 1G")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(sizes);
  app->add_option("-e,--max-bytes", request.max_bytes, "Largest size")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(sizes);
  app->add_option("-f,--factor", request.factor, "From one size to the next")
      ->check(CLI::Range(1.01, 1e6));
  app->add_option("--seconds", request.seconds,
                  "Time to measure each size, communicator and placement")
      ->check(CLI::Range(0.001, 3600.0));
  app->add_option("--iterations", request.iterations, "In place of --seconds; 0: by them")
      ->check(CLI::Range(0, 1000000));
  app->add_option("-w,--warmup-iters", request.warm_ups, "Iterations before them, in each turn")
      ->check(CLI::Range(1, 10000));
  app->add_option("--blocks", request.blocks,
                  "Blocks of two rounds, A B then B A; each turn connects anew")
      ->check(CLI::Range(1, 1000));
  app->add_option("--timeout", flags->timeout_s, "Seconds that one collective may take")
      ->check(CLI::Range(0.1, 1e5));
  app->add_option("--seed", request.seed, "Of the bootstrap")->capture_default_str();
  AddLinkFlags(app, &flags->link);
  for (const char* flag : {"--link", "--launcher", "--key-file"}) {
    app->get_option(flag)->take_last();  // see CommandOfALinkedRank
  }
}

void AddBenchCollectives(CLI::App& bench, const command::Environment& environment, int* exit_code) {
  CLI::App* collectives = bench.add_subcommand(
      "collectives", "Time collectives of rising size through one communicator or two");
  auto flags = std::make_shared<BenchCollectivesFlags>();
  collectives->add_option("--a", flags->a, "Communicator: a name, or the path of a library")
      ->required()
      ->type_name("NAME|FILE");
  collectives->add_option("--b", flags->b, "Another one, or the same with other options")
      ->type_name("NAME|FILE");
  AddSideFlags(collectives, "a", &flags->a_more, false);
  AddSideFlags(collectives, "b", &flags->b_more, false);
  AddSweepFlags(collectives, flags.get());
  collectives
      ->add_option("--kind", flags->kind, "all_reduce, reduce_scatter, all_gather, broadcast")
      ->check(CLI::IsMember(Kinds()));
  collectives->add_option("--dtype", flags->dtype, "float32, float16, bfloat16, int32, uint8")
      ->check(CLI::IsMember(DTypes()));
  collectives->add_option("--format", flags->format, "What to print: table, nccl-tests, csv, json")
      ->check(CLI::IsMember({"table", "nccl-tests", "csv", "json"}));
  collectives->footer(
      "Example: engine bench collectives -n 2 --a tcp --b ./libengine_mine.so\n"
      "Exit code 79: a communicator gave a wrong result. docs/benchmarking.md");
  collectives->callback([flags, &environment, exit_code] {
    const auto made = MakeSweepRequest(*flags, environment);
    if (!made.ok()) {
      *exit_code = command::ReportError(made.status());
      return;
    }
    flags->request = *made;
    *exit_code = RunOnRanks(
        *flags, environment,
        [&](const auto& request, const auto& conditions, const auto& /*network*/,
            base::RankContext& rank) { return SweepRank(*flags, request, conditions, rank); });
  });
}

}  // namespace engine
