// One rank in this process without others: what is needed to plan steps and to time their compute.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/data/dataset_source.h"
#include "app/run/serve.h"
#include "core/plugin/rank_plugins.h"
#include "tools/simulate/compute_times.h"

namespace engine::simulate {

// The store of a world of one: nobody else posts.
class LocalStore final : public base::Store {
 public:
  Status Set(std::string_view key, std::string_view value) override;
  Result<std::string> Get(std::string_view key, int64_t timeout_ms) override;
  Result<bool> Has(std::string_view key) override;
  Status Post(std::string_view) override { return {}; }
  void Listen(std::function<void(std::string_view)>) override {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;  // guarded by mutex_
};

class LocalProfiler {
 public:
  // Loads the plugins and opens the data of `config`, which is borrowed.
  static Result<std::unique_ptr<LocalProfiler>> Create(const config::Config& config,
                                                       base::LogSink log);

  const train::RunConfig& config() const { return config_.run(); }
  const base::RankContext& context() const { return context_; }
  plugin::PluginSet& plugins() { return plugins_->set(); }
  std::vector<std::string> HookNames() const { return config_.plugins().HookNames(); }

  // The model for steps of `samples` samples.
  Result<graph::Graph> BuildGraph(int64_t samples);

  // Trains for a few steps to warm up, then for `steps`, of which it returns the times of the tasks;
  // `step_seconds`: their sum.
  Result<ComputeTimes> MeasureCompute(int64_t samples, int64_t steps, double* step_seconds);

 private:
  LocalProfiler(const config::Config& config, base::LogSink log)
      : config_(config), data_(config.run(), context_) {
    context_.log = std::move(log);
    run::SetDeadlines(config.run().communication, context_);
  }

  const config::Config& config_;
  std::atomic<int> stop_{0};
  base::AbortSignal abort_;
  LocalStore store_;
  base::RankContext context_{.info = {}, .store = store_, .abort = abort_, .stop_requested = stop_};
  data::DatasetSource data_;
  std::unique_ptr<plugin::RankPlugins> plugins_;
};

}  // namespace engine::simulate
