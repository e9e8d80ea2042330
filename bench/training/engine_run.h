// One run of one side: `engine run` in processes of its own.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/link/linked_hosts.h"
#include "bench/process/process_group.h"
#include "bench/process/rendezvous.h"
#include "bench/training/order.h"
#include "bench/training/result.h"
#include "tools/trace/trace_format.h"

namespace engine::bench {

// What a run needs of the process that asks for it.
struct Program {
  std::string binary;                              // this executable
  std::map<std::string, std::string> environment;  // handed on
  std::string folder;                              // exists, empty, for files of the runs
  // Not null: a launcher has started this process as that rank, and all of its ranks do what one does, each
  // for its own rank of a run. `access`: what a run is told of who may join (--key-file FILE, --insecure).
  base::RankContext* rank = nullptr;
  std::vector<std::string> access = {};

  bool measures() const { return rank == nullptr || rank->info.rank == 0; }
};

// Keys that every measured run sets for itself, so that a step is all there is to time.
std::vector<std::string> MeasuringOverrides(int64_t steps);

// The arguments after `engine` of a run of `side` with `steps` steps and `servers` servers in all.
// `by_rank`: each rank is a process that torchrun's variables number; else `engine run` starts them.
std::vector<std::string> RunArguments(const TrainRequest& request, const Side& side, int servers,
                                      int64_t steps, bool by_rank);

class EngineRunner {
 public:
  // All are borrowed; `hosts` may be null.
  EngineRunner(const TrainRequest& request, const Program& program,
               const launch::StopSignals& signals, LinkedHosts* hosts);

  // warmup + `steps` steps of `side`, of which the last `steps` are measured; fewer where a target of
  // the losses is reached, and then by rank 0's metrics, without a trace. The error of the run
  // when it fails, with its last line and the code that belongs to its exit code. Of ranks of a launcher,
  // rank 0 alone has measured anything.
  Result<RunResult> Run(const Turn& turn, int64_t steps);

 private:
  Result<std::vector<Command>> Commands(const RunResult& run, int64_t steps) const;
  Result<std::vector<Command>> LinkedCommands(const Side& side, int servers, Command rank) const;
  Status Meet();
  void LearnSpans(const trace::Trace& trace, int64_t steps);
  Status Execute(const std::vector<Command>& commands, RunResult* run) const;

  const TrainRequest& request_;
  const Program& program_;
  const launch::StopSignals& signals_;
  LinkedHosts* const hosts_;
  const std::string metrics_;             // the file of a run
  std::optional<Rendezvous> rendezvous_;  // of the ranks of a launcher, before each run
  std::string place_;                     // where those of the next run find each other
  double spans_per_step_ = 0;             // the most that a rank has recorded so far; 0: not known
};

}  // namespace engine::bench
