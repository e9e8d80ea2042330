// One rank in this process without others: what is needed to plan steps and to time their compute.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/data/dataset_source.h"
#include "app/launch/memory_store.h"
#include "core/plugin/rank_plugins.h"
#include "tools/simulate/compute_times.h"

namespace engine::simulate {

class LocalProfiler {
 public:
  // Loads the plugins and opens the data of `config`, which is borrowed.
  static Result<std::unique_ptr<LocalProfiler>> Create(const config::Config& config,
                                                       base::LogSink log);

  const train::RunConfig& config() const { return config_.run(); }
  plugin::PluginSet& plugins() { return plugins_->set(); }
  std::vector<std::string> HookNames() const { return config_.plugins().HookNames(); }

  // The model for steps of `samples` samples.
  Result<graph::Graph> BuildGraph(int64_t samples);

  // Trains for a few steps to warm up, then for `steps`, of which it returns the times.
  Result<ComputeTimes> MeasureCompute(int64_t samples, int64_t steps);

 private:
  LocalProfiler(const config::Config& config, base::LogSink log)
      : config_(config),
        store_(std::make_shared<launch::MemoryTable>(), abort_),
        data_(config.run(), context_) {
    context_.log = std::move(log);
  }

  const config::Config& config_;
  std::atomic<int> stop_{0};
  base::AbortSignal abort_;
  launch::MemoryStore store_;
  base::RankContext context_{.info = {}, .store = store_, .abort = abort_, .stop_requested = stop_};
  data::DatasetSource data_;
  std::unique_ptr<plugin::RankPlugins> plugins_;
};

}  // namespace engine::simulate
