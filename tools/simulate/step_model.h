// The tasks of a step for any number of ranks, without their memory.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/exec/task_graph.h"
#include "core/exec/wire.h"
#include "core/graph/memory_plan.h"
#include "engine/host.h"
#include "tools/simulate/local_profiler.h"

namespace engine::simulate {

// What a scheduler in a simulated run sees of it: one rank of many, no store, no device.
class SimulatedHost final : public HostBase {
 public:
  explicit SimulatedHost(const RankInfo& rank) : rank_(rank) {}
  RankInfo rank_info() const noexcept override { return rank_; }
  Device* device() const noexcept override { return nullptr; }
  void Log(LogLevel level, std::string_view message) noexcept override;
  void Metric(std::string_view, double) noexcept override {}
  Status StoreSet(std::string_view, std::span<const uint8_t>) noexcept override {
    return NoStore();
  }
  Status StoreGet(std::string_view, int64_t, void (*)(void*, const uint8_t*, uint64_t),
                  void*) noexcept override {
    return NoStore();
  }
  Status StoreHas(std::string_view, uint32_t*) noexcept override { return NoStore(); }

  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  static Status NoStore() noexcept {
    return Status::Error(StatusCode::kUnsupported, "a simulated rank has no store");
  }

  const RankInfo rank_;
  std::vector<std::string> warnings_;
};

// One plan with the scheduler that made it. The scheduler goes before its host.
struct StepPlan {
  std::unique_ptr<SimulatedHost> host;
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
