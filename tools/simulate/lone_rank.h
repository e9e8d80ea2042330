// One rank in this process without others: what is needed to plan steps and to time their compute.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "app/config/config.h"
#include "app/launch/memory_store.h"
#include "core/train/rank_plugins.h"
#include "core/train/run_data.h"
#include "tools/simulate/compute_times.h"

namespace engine {

class LoneRank {
 public:
  // Loads the plugins and opens the data of `config`, which is borrowed.
  static Result<std::unique_ptr<LoneRank>> Create(const Config& config, LogSink log);

  const RunConfig& config() const { return config_.run(); }
  PluginSet& plugins() { return plugins_->set(); }
  std::vector<std::string> HookNames() const;

  // The model for steps of `samples` samples.
  Result<Graph> BuildGraph(int64_t samples);

  // Trains for a few steps to warm up, then for `steps`, of which it returns the times.
  Result<ComputeTimes> MeasureCompute(int64_t samples, int64_t steps);

 private:
  LoneRank(const Config& config, LogSink log)
      : config_(config), store_(std::make_shared<MemoryTable>(), abort_) {
    context_.log = std::move(log);
  }

  const Config& config_;
  std::atomic<int> stop_{0};
  AbortSignal abort_;
  MemoryStore store_;
  RankContext context_{.info = {}, .store = store_, .abort = abort_, .stop_requested = stop_};
  HostedDataset data_;
  std::unique_ptr<RankPlugins> plugins_;
};

}  // namespace engine
