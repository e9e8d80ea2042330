// Predictions over numbers of ranks and schedulers, with the bounds that theory gives.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "tools/simulate/network.h"
#include "tools/simulate/simulation.h"
#include "tools/trace/trace_format.h"

namespace engine::simulate {

struct StudyOptions {
  NetworkModel network;
  std::vector<int32_t> ranks;  // ascending, without 1
  int64_t steps = 50;          // simulated for each prediction
  int64_t measured_steps = 5;  // run to time the compute; not with a trace
};

// Measured several times; seconds that the tasks of a step take one rank with so many samples.
struct ComputeSpread {
  double least = 0, median = 0, most = 0;
};

// One number of ranks. Times are seconds of one step. F: forward tasks, reduced hooks and updates;
// B: the rest of the compute; C: the bytes of all transfers on the link, of servers of their own
// those of the fuller way, and nothing else.
struct Prediction {
  int32_t ranks = 1;
  int64_t samples = 0;                        // of each rank
  std::optional<ComputeSpread> compute = {};  // none with a trace
  double forward = 0, backward = 0, communication = 0;
  double serial = 0;  // C without overlap: servers of their own get everything before they send
  double step = 0;
  double exposed = 0;  // of it, the compute lane waits: the price of communication
  double no_overlap() const { return forward + backward + serial; }
  double backward_overlap() const { return forward + std::max(backward, communication); }
  double full_overlap() const { return std::max(forward + backward, communication); }
  double ratio() const { return communication / (forward + backward); }  // r
  double schedule_efficiency() const { return full_overlap() / step; }
  double scaling_efficiency = 1;  // samples per second and rank, as a share of those of one rank
};

struct SchedulerStudy {
  std::string scheduler;  // and "+hier" where transfers go as the communicator hier sends them
  Prediction alone;       // one rank
  std::vector<Prediction> predictions;
  std::vector<std::string> warnings;  // of the scheduler
};

// What was recorded, and the configuration that it was recorded with.
struct TracedRun {
  trace::Trace trace;
  config::Config config;
};

// `configs` differ in their schedulers; each is studied without `network.hier` and, with several ranks
// on a host, with it. The compute is that of `traced`, or it is measured here:
// with one rank, in this process, under the first configuration.
Result<std::vector<SchedulerStudy>> RunStudy(const std::vector<config::Config>& configs,
                                             const std::optional<TracedRun>& traced,
                                             const StudyOptions& options);

// Names of schedulers by predicted step time at `ranks`, the fastest first.
std::vector<std::string> Ranking(const std::vector<SchedulerStudy>& studies, int32_t ranks);

// For people and for programs.
std::string FormatStudy(const std::vector<SchedulerStudy>& studies, const StudyOptions& options);
std::string FormatStudyJson(const std::vector<SchedulerStudy>& studies,
                            const StudyOptions& options);

}  // namespace engine::simulate
