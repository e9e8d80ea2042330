// The tasks of a step for any number of ranks, without their memory.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/exec/task_graph.h"
#include "core/exec/wire.h"
#include "core/graph/memory_plan.h"
#include "core/plugin/plugin_host.h"
#include "tools/simulate/local_profiler.h"

namespace engine::simulate {

// What the scheduler of `choice` sees of a simulated run: one rank of many, no device.
struct SimulatedRank {
  SimulatedRank(base::RankContext local, const RankInfo& info, const plugin::PluginChoice& choice)
      : context(std::move(local)), host(choice.entry.name, context, nullptr, nullptr) {
    context.info = info;
    context.log = [this](LogLevel level, std::string_view text) {
      if (level >= LogLevel::kWarning) warnings.emplace_back(text);
    };
    host.Offer(choice);
  }

  std::vector<std::string> warnings;
  base::RankContext context;
  plugin::PluginHost host;
};

// One plan with the scheduler that made it, which goes before its rank.
struct StepPlan {
  std::unique_ptr<SimulatedRank> rank;
  std::unique_ptr<Scheduler> scheduler;
  exec::TaskGraph graph;
};

class StepModel {
 public:
  // Of steps of `samples` samples. `rank` is borrowed and outlives the model.
  static Result<std::unique_ptr<StepModel>> Create(LocalProfiler& rank, int64_t samples);

  // Asks a new object of the configured scheduler. `max_in_flight`: of the communicator. `servers`:
  // of their own; with them, or if the configured communicator says so, and there are others than
  // this rank, servers update.
  Result<StepPlan> PlanFor(int32_t rank, int32_t world_size, uint32_t max_in_flight,
                           int32_t servers) const;

  // Whether transfers wait for other ranks.
  bool collective(int32_t servers) const { return !Served(servers); }

 private:
  explicit StepModel(LocalProfiler& rank) : rank_(rank) {}
  bool Served(int32_t servers) const { return servers > 0 || served_; }

  LocalProfiler& rank_;
  graph::Graph graph_;
  graph::Program program_;
  graph::MemoryPlan memory_;
  CommunicatorTraits communicator_;
  bool served_ = false;        // by servers inside of the ranks
  bool asynchronous_ = false;  // and no rank waits for another
  UpdateGate optimizer_gate_ = UpdateGate::kSpan;
  std::vector<HookTraits> hooks_;
  exec::WireChoice wire_;
};

}  // namespace engine::simulate
