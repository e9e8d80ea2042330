// What `engine bench train` was asked and what it found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/link/linked_hosts.h"
#include "bench/machine/machine.h"
#include "bench/profile/profile.h"
#include "bench/statistics/ratio.h"
#include "bench/statistics/summary.h"

namespace engine::bench {

// What distinguishes one side; all of it is handed to `engine run`.
struct Side {
  std::vector<std::string> plugins;         // --plugins
  std::vector<std::string> overrides;       // --set
  std::vector<std::string> plugin_folders;  // --plugin-path

  bool any() const { return !plugins.empty() || !overrides.empty() || !plugin_folders.empty(); }
};

// "tcp, fifo_sched; train.x=1", for reports.
std::string Describe(const Side& side);

enum class SideId {
  kA = 0,
  kB = 1,
  kNull = 2,  // A without communication: its steps take the compute time alone
};
constexpr int kSides = 3;
constexpr const char* Name(SideId side) {
  constexpr const char* kNames[] = {"A", "B", "null"};
  return kNames[static_cast<int>(side)];
}

struct RunResult {
  SideId side = SideId::kA;
  int block = 0;             // from 0
  uint64_t seed = 0;         // of the model, unless a side has set another
  double begin_seconds = 0;  // since the first run began
  double wall_seconds = 0;   // of the whole run, start and end included
  // Of each measured step the time of its slowest rank, with a target that of rank 0; steps of the
  // warm-up are left out.
  std::vector<double> step_seconds;
  std::vector<double> losses;                 // of all steps, from the first
  std::optional<double> target_seconds = {};  // of the steps until the target of the losses
  double waited_seconds = 0;   // per step, of rank 0's compute lane for transfers: median
  int64_t bytes_per_step = 0;  // that a rank hands to the communicator, what it pulls from servers
                               // not counted; 0: not known
  double forward_seconds = 0, backward_seconds = 0;  // per step: median; 0: not known
  // Counted on the links during the run; with drops it is left out of the comparison.
  uint64_t sent_packets = 0, dropped_packets = 0;

  // What is compared.
  std::vector<double> Times() const {
    return target_seconds ? std::vector{*target_seconds} : step_seconds;
  }
};

// Of all runs that were compared, the earliest step whose loss differs.
struct LossDifference {
  int64_t step = 0;               // from 1
  size_t run = 0, other_run = 0;  // index in `runs`
  double loss = 0, other_loss = 0;
};

// The emulated network, if there is one.
struct LinkConditions {
  std::string rate;  // as given
  double goodput_bits_per_second = 0;
  std::string congestion;
};

// Times of one step that follow from what was measured and from the link; a missing one is unknown.
struct Conditions {
  std::optional<double> compute_seconds;        // F + B
  std::optional<double> communication_seconds;  // C: the bytes on the bottleneck link
  std::optional<double> ratio;                  // r = C / (F + B)
  // Bounds of a step: every transfer after the backward pass (to servers first, then from them),
  // during it, and during the next forward pass as well.
  std::optional<double> no_overlap, backward_overlap, full_overlap;
};

struct TrainRequest {
  std::string config_file;             // empty: the built-in default
  std::string config_name;             // for reports
  std::vector<std::string> overrides;  // of both sides, before their own
  std::vector<std::string> plugin_folders;
  Side a, b;
  std::optional<Side> null_side;
  bool same = false;  // A against A: b is a
  int ranks = 2;
  bool one_host = true;            // all ranks share one, and no links are emulated
  int servers = 0;                 // of their own: members that ranks push to and pull from
  int64_t warmup = 5, steps = 50;  // of each run: dropped, and measured
  int blocks = 3;
  uint64_t seed = 1;  // of the bootstrap
  // Runs end when the mean of kLossWindow losses is at most so much. Then `steps` is the most, all are
  // measured, and the seeds of the pairs count from `model_seed`.
  std::optional<double> target_loss = {};
  uint64_t model_seed = 1;
  double loss_tolerance = 1e-4;
  int64_t timeout_ms = 600000;         // of one run
  LinkOptions link{.rate = ""};        // no rate: ranks on this host, without a limit
  std::optional<ProfileFacts> stated;  // F, B and the gradient's bytes where the model states them

  // A side that runs.
  const Side& side(SideId id) const {
    return id == SideId::kA ? a : id == SideId::kB ? b : *null_side;
  }
};

struct TrainResult {
  TrainRequest request;
  Machine machine;
  std::vector<RunResult> runs;       // in the order in which they ran
  std::vector<RunResult> discarded;  // packets were dropped
  std::optional<LinkConditions> link;
  Summary steps[kSides];  // seconds, over the measured steps of all runs of a side
  Conditions conditions;
  Ratio ratio;
  Ratio target_seconds[kSides] = {};  // to the target, with the interval over runs
  std::optional<LossDifference> difference;
  bool refused = false;  // losses differ, or a run has not reached the target: there is no ratio
  std::string sentence;  // the conclusion, or why there is none
};

// The measured steps of all runs of a side, in seconds.
std::vector<double> StepsOf(const TrainResult& result, SideId side);

}  // namespace engine::bench
