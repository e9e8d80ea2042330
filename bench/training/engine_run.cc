#include "bench/training/engine_run.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>

#include "app/launch/endpoint.h"
#include "app/launch/exit_code.h"
#include "app/launch/launch.h"
#include "app/launch/server_key.h"
#include "app/plugins/words.h"
#include "bench/link/linked_ranks.h"
#include "bench/training/losses.h"
#include "bench/training/traced_steps.h"
#include "tools/report/run_log.h"

namespace engine::bench {
namespace {

constexpr int64_t kDefaultSpans = 65536;  // of output.trace_spans
constexpr int64_t kReadMs = 60000;        // for rank 0 to read what a run has written

// The last line that says something.
std::string LastLine(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  constexpr std::string_view kPrefix = "engine: ";
  return last.starts_with(kPrefix) ? last.substr(kPrefix.size()) : last;
}

void AddPluginFolders(const TrainRequest& request, const Side& side,
                      std::vector<std::string>* arguments) {
  for (const auto* folders : {&side.plugin_folders, &request.plugin_folders}) {
    for (const std::string& folder : *folders) {
      arguments->insert(arguments->end(), {"--plugin-path", folder});
    }
  }
}

std::vector<double> Values(const report::Series& series) {
  std::vector<double> values;
  for (const auto& [step, value] : series) values.push_back(value);
  return values;
}

// Until a run hears that it has reached the target it goes on.
void EndAt(double target, RunResult* run) {
  const auto steps = StepsTo(target, run->losses);
  if (!steps) return;
  run->losses.resize(*steps);
  run->step_seconds.resize(*steps);
  run->target_seconds = std::accumulate(run->step_seconds.begin(), run->step_seconds.end(), 0.0);
}

// A code that has this exit code.
StatusCode CodeOf(int exit_code) {
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    if (launch::ExitCode(static_cast<StatusCode>(code)) == exit_code)
      return static_cast<StatusCode>(code);
  }
  return exit_code > 128 ? StatusCode::kPeerLost : StatusCode::kInternal;
}

}  // namespace

std::vector<std::string> MeasuringOverrides(int64_t steps) {
  return {"train.steps=" + std::to_string(steps), "train.evaluate_every=-1",
          "train.checkpoint_every=0", "output.checkpoint=", "output.sample_bytes=0"};
}

std::vector<std::string> RunArguments(const TrainRequest& request, const Side& side, int servers,
                                      int64_t steps, bool by_rank) {
  std::vector<std::string> arguments = {"run"};
  if (!request.config_file.empty()) arguments.push_back(request.config_file);
  arguments.push_back("--quiet");
  if (by_rank) {
    arguments.insert(arguments.end(), {"--launcher", "torchrun"});
  } else {
    arguments.insert(arguments.end(), {"--launcher", "none", "-n", std::to_string(request.ranks)});
  }
  if (servers > 0) arguments.insert(arguments.end(), {"--servers", std::to_string(servers)});
  AddPluginFolders(request, side, &arguments);
  if (!side.plugins.empty()) {
    arguments.insert(arguments.end(), {"--plugins", plugins::Join(side.plugins, ",")});
  }
  for (const auto& overrides : {request.overrides, side.overrides, MeasuringOverrides(steps)}) {
    for (const std::string& override : overrides) {
      arguments.insert(arguments.end(), {"--set", override});
    }
  }
  return arguments;
}

EngineRunner::EngineRunner(const TrainRequest& request, const Program& program,
                           const launch::StopSignals& signals, LinkedHosts* hosts)
    : request_(request),
      program_(program),
      signals_(signals),
      hosts_(hosts),
      metrics_(program.folder + "/output.metrics") {
  if (program.rank != nullptr) rendezvous_.emplace(*program.rank, request.timeout_ms + kReadMs);
}

// All ranks have left the run before. Each run meets at a place of its own, which none of another finds.
Status EngineRunner::Meet() {
  base::RankContext& rank = *program_.rank;
  if (rank.info.rank == 0) {
    ENGINE_ASSIGN_OR_RETURN(std::string host, launch::AddressOf(rank));
    if (host.empty()) host = "127.0.0.1";
    ENGINE_ASSIGN_OR_RETURN(place_, launch::FreeAddress(host));
  }
  ENGINE_ASSIGN_OR_RETURN(const std::string told, rendezvous_->Meet("", [&](const auto&) {
    return place_ + " " + std::to_string(spans_per_step_);
  }));
  std::istringstream(told) >> place_ >> spans_per_step_;
  return {};
}

Result<std::vector<Command>> EngineRunner::Commands(const RunResult& run, int64_t steps) const {
  const Side& side = request_.side(run.side);
  const int servers = run.side == SideId::kNull ? 0 : request_.servers;
  Command command{.environment = program_.environment};
  command.arguments =
      RunArguments(request_, side, servers, steps, hosts_ != nullptr || rendezvous_);
  command.arguments.insert(command.arguments.begin(), program_.binary);
  const auto set = [&](const char* key, const std::string& value) {
    command.arguments.insert(command.arguments.end(), {"--set", key + ("=" + value)});
  };
  set("output.metrics", metrics_);
  if (request_.target_loss) {
    set("seed", std::to_string(run.seed));
  } else {
    set("output.trace", program_.folder + "/output.trace");
  }
  const auto spans = static_cast<int64_t>(2 * spans_per_step_ * static_cast<double>(steps));
  if (spans > kDefaultSpans) set("output.trace_spans", std::to_string(spans));
  if (hosts_ != nullptr) return LinkedCommands(side, servers, std::move(command));
  command.output = program_.folder + "/output.0";
  if (rendezvous_) {
    const RankInfo& rank = program_.rank->info;
    command.arguments.insert(command.arguments.end(), {"--rendezvous", place_});
    command.arguments.insert(command.arguments.end(), program_.access.begin(),
                             program_.access.end());
    SetRank(rank.rank, rank.world_size, rank.local_rank, rank.local_world_size, &command);
  }
  return std::vector<Command>{std::move(command)};
}

Result<std::vector<Command>> EngineRunner::LinkedCommands(const Side& side, int servers,
                                                          Command rank) const {
  const std::string output = program_.folder + "/output.", key_file = program_.folder + "/key";
  // They meet over a network that is not loopback.
  const auto key = launch::ServerKey::LoadOrCreate(key_file);
  if (!key.ok()) return key.status();
  rank.arguments.insert(rank.arguments.end(), {"--key-file", key_file});
  std::vector<Command> commands = RanksOnHosts(rank, *hosts_, request_.ranks, output);
  if (servers == 0) return commands;
  Command server{.environment = program_.environment};
  server.arguments = {program_.binary, "serve",  RendezvousOf(*hosts_),
                      "--key-file",    key_file, "--quiet"};
  AddPluginFolders(request_, side, &server.arguments);
  for (Command& command : ServersOnHosts(server, *hosts_, request_.ranks, output)) {
    commands.push_back(std::move(command));
  }
  return commands;
}

// The ring of spans must hold all measured steps: a run tells the next ones how much that is.
void EngineRunner::LearnSpans(const trace::Trace& trace, int64_t steps) {
  for (const trace::RankTimeline& timeline : trace.ranks) {
    const auto recorded = static_cast<double>(timeline.spans.size() + timeline.dropped);
    spans_per_step_ = std::max(spans_per_step_, recorded / static_cast<double>(steps));
  }
}

Status EngineRunner::Execute(const std::vector<Command>& commands, RunResult* run) const {
  LinkCounters before;
  if (hosts_ != nullptr) {
    ENGINE_ASSIGN_OR_RETURN(before, hosts_->Counters());
  }
  report::RunLog log;
  std::function<bool()> reached;
  if (request_.target_loss) {
    reached = [&] {
      return report::ReadOn(metrics_, &log).ok() &&
             StepsTo(*request_.target_loss, Values(log.of_steps["loss"]));
    };
  }
  const auto begin = std::chrono::steady_clock::now();
  ENGINE_ASSIGN_OR_RETURN(
      std::vector<ProcessEnd> ends,
      RunTogether(commands, std::chrono::milliseconds(request_.timeout_ms),
                  rendezvous_ ? nullptr : &signals_, kGrace,
                  rendezvous_ ? &program_.rank->stop_requested : nullptr, reached));
  for (ProcessEnd& end : ends) {  // the one that was told to stop told the others
    if (request_.target_loss && end.exit_code == 128 + SIGTERM) end.exit_code = 0;
  }
  run->wall_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const size_t failed = FirstFailure(ends);
  if (failed < ends.size()) {
    const std::string said = LastLine(commands[failed].output);
    return Status::Error(CodeOf(ends[failed].exit_code), "exit code %d: %s", ends[failed].exit_code,
                         said.empty() ? "it said nothing" : said.c_str());
  }
  if (hosts_ != nullptr) {
    ENGINE_ASSIGN_OR_RETURN(const LinkCounters after, hosts_->Counters());
    const LinkCounters counted = Difference(before, after);
    run->sent_packets = counted.sent_packets;
    run->dropped_packets = counted.dropped_packets;
  }
  return {};
}

Result<RunResult> EngineRunner::Run(const Turn& turn, int64_t steps) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(program_.folder, ignored)) {
    if (entry.path().filename().string().starts_with("output.")) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
  if (rendezvous_) ENGINE_RETURN_IF_ERROR(Meet());
  RunResult run{
      .side = turn.side,
      .block = turn.block,
      .seed = request_.model_seed + static_cast<uint64_t>(request_.target_loss ? turn.pair : 0)};
  ENGINE_ASSIGN_OR_RETURN(const std::vector<Command> commands,
                          Commands(run, request_.warmup + steps));
  ENGINE_RETURN_IF_ERROR(
      Execute(commands, &run).WithContext("a run of %s failed", Name(turn.side)));
  if (!program_.measures()) return run;
  ENGINE_ASSIGN_OR_RETURN(report::RunLog log, report::ReadRunLog(metrics_));
  run.losses = Values(log.of_steps["loss"]);
  if (request_.target_loss) {
    run.step_seconds = Values(log.of_steps["seconds"]);
    EndAt(*request_.target_loss, &run);
    return run;
  }
  ENGINE_ASSIGN_OR_RETURN(const trace::Trace trace,
                          trace::ReadTrace(program_.folder + "/output.trace"));
  LearnSpans(trace, request_.warmup + steps);
  ENGINE_RETURN_IF_ERROR(MeasureSteps(trace, steps, &run));
  return run;
}

}  // namespace engine::bench
