// Which communicator, scheduler and sizes suit the ranks of this run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/cluster/decision.h"
#include "bench/cluster/steps.h"
#include "bench/collectives/format.h"
#include "bench/collectives/sweep.h"

namespace engine::bench {

struct ModelRequest {
  // The configuration with these plugins and options beside its own; empty: as it stands.
  std::function<Result<config::Config>(const std::vector<std::string>& plugins,
                                       const std::vector<std::string>& options)>
      load;
  std::vector<std::string> schedulers;
  int64_t warmup = 5;
  double loss_tolerance = 1e-4;
};

struct ClusterRequest {
  SweepRequest sweep;  // kind and dtype are those of the lists, its contenders all that there are
  std::vector<TransferKind> kinds;
  std::vector<DType> dtypes;
  // A contender by_size with these options; null: there is no such plugin.
  std::function<Result<Contender>(const std::vector<std::string>& options)> by_size;
  std::string default_communicator;   // of a configuration that names none
  std::optional<ModelRequest> model;  // also trains
};

// Rank 0 and another one alone: all-reduces of 4 B, and of 4 MiB.
struct PairClass {
  std::string name;  // "same host"
  int other = 0;
  ClusterSweep sweep;
};
constexpr int64_t kSmallBytes = 4, kLargeBytes = 4 << 20;

struct ClusterResult {
  std::vector<int> hosts;                                     // of each rank
  std::vector<std::pair<std::string, std::string>> left_out;  // who and why
  std::vector<PairClass> pairs;
  std::vector<ClusterSweep> sweeps;
  std::vector<std::pair<std::string, std::vector<SideSteps>>> races;  // title, sides
  std::string fragment;  // empty: nothing is surely faster than the defaults
  Ratio gain;            // of the fragment over the defaults; no pairs: nothing else was tried
  std::string sentence;
  std::string wrong_in_words;  // a wrong result
};

std::vector<std::string> NamesOf(const std::vector<Contender>& contenders);

// Collective. The result is complete on rank 0 only, where `progress` gets a line for each thing
// that begins.
Result<ClusterResult> MeasureCluster(const ClusterRequest& request, base::RankContext& rank,
                                     const std::function<void(const std::string&)>& progress);

// For a terminal of 80 columns; the conclusion comes last.
std::string ClusterText(const ClusterResult& result, const SweepConditions& conditions);
std::string ClusterHtml(const ClusterResult& result, const SweepConditions& conditions);

}  // namespace engine::bench
