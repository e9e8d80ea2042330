#include "tools/simulate/local_profiler.h"

#include <numeric>
#include <vector>

#include "app/model/model_graph.h"
#include "app/run/write_trace.h"
#include "core/base/deadline.h"
#include "core/exec/executor.h"

namespace engine::simulate {
namespace {

// Enough for some dozen steps of a model with thousands of tasks.
constexpr size_t kSpans = 1 << 18;
constexpr int64_t kWarmUpSteps = 2;

}  // namespace

Status LocalStore::Set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
  return {};
}

// Threads of a plugin, such as servers inside of the rank, may wait for each other.
Result<std::string> LocalStore::Get(std::string_view key, int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  const bool there = changed_.wait_until(lock, base::DeadlineIn(timeout_ms),
                                         [&] { return values_.contains(key); });
  if (!there) return base::StoreTimeout(key, timeout_ms);
  return values_.find(key)->second;
}

Result<bool> LocalStore::Has(std::string_view key) {
  const std::lock_guard lock(mutex_);
  return values_.contains(key);
}

Result<std::unique_ptr<LocalProfiler>> LocalProfiler::Create(const config::Config& config,
                                                             base::LogSink log) {
  std::unique_ptr<LocalProfiler> rank(new LocalProfiler(config, std::move(log)));
  ENGINE_RETURN_IF_ERROR(rank->data_.Open());
  ENGINE_ASSIGN_OR_RETURN(rank->plugins_,
                          plugin::RankPlugins::Create(config.plugins(), rank->context_));
  return rank;
}

Result<graph::Graph> LocalProfiler::BuildGraph(int64_t samples) {
  const int64_t at_once = config().train.SamplesAtOnce(samples);
  return model::BuildGraph(config(), context_, model::RequestFor(data_.info(), at_once, true),
                           plugins_->op_factory());
}

Result<ComputeTimes> LocalProfiler::MeasureCompute(int64_t samples, int64_t steps,
                                                   double* step_seconds) {
  ENGINE_ASSIGN_OR_RETURN(graph::Graph graph, BuildGraph(samples));
  const plugin::PluginSelection& chosen = config_.plugins();
  const exec::ExecutorOptions options{.seed = config().seed,
                                      .timeout_ms = config().communication.timeout_ms,
                                      .micro_batches = config().train.micro_batches,
                                      .sends_alone = true,
                                      .trace_spans = kSpans,
                                      .communicator_name = chosen.communicator.entry.name,
                                      .scheduler_name = chosen.scheduler.entry.name,
                                      .optimizer_name = chosen.optimizer.entry.name,
                                      .hook_names = chosen.HookNames()};
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<exec::Executor> executor,
                          exec::Executor::Create(std::move(graph), plugins_->set(),
                                                 plugins_->op_factory(), &store_, options));
  ENGINE_RETURN_IF_ERROR(executor->memory().InitializeParameters());
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<train::BatchStream> batches,
                          data_.Batches({.global_batch = samples}));
  for (int64_t step = 1; step <= kWarmUpSteps + steps; ++step) {
    ENGINE_ASSIGN_OR_RETURN(const train::Batch* batch, batches->Next());
    const auto result =
        executor->Step({.input = batch->input,
                        .target = batch->target,
                        .others = batch->others,
                        .samples = batch->samples,
                        .step = static_cast<uint64_t>(step),
                        .learning_rate = static_cast<float>(config().train.learning_rate(
                            step, steps, batches->steps_per_epoch()))});
    if (!result.ok()) return result.status();
  }
  ENGINE_RETURN_IF_ERROR(executor->Flush());
  ComputeTimes times;
  ENGINE_RETURN_IF_ERROR(
      times.Learn(run::TimelineOf(*executor, {}), executor->tasks(), kWarmUpSteps + 1));
  ENGINE_ASSIGN_OR_RETURN(const std::vector<int64_t> tasks, times.For(executor->tasks()));
  *step_seconds =
      1e-9 * static_cast<double>(std::accumulate(tasks.begin(), tasks.end(), int64_t{0}));
  return times;
}

}  // namespace engine::simulate
