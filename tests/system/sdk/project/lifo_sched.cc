// lifo_sched: the compute lane takes the task that became ready last.
#include <cstdint>
#include <new>
#include <vector>

#include "engine/plugin.h"

namespace {

class LifoScheduler final : public engine::Scheduler {
 public:
  // One unit per parameter, in the order in which gradients become ready.
  engine::Status Plan(const engine::ModelInfo& model, engine::PlanSink& sink) noexcept override {
    for (const engine::ParameterInfo& parameter : model.parameters) {
      const engine::UnitSpan span{.parameter = parameter.id, .count = parameter.count};
      sink.AddUnit({&span, 1}, /*priority=*/0);
    }
    return {};
  }

  engine::Status Begin(std::span<const engine::TaskInfo> tasks) noexcept override {
    try {
      lane_of_.resize(tasks.size());
      compute_.reserve(tasks.size());
      io_.reserve(tasks.size());
    } catch (const std::bad_alloc&) {
      return engine::Status::Error(engine::StatusCode::kResourceExhausted,
                                   "no memory to order %zu tasks", tasks.size());
    }
    for (const engine::TaskInfo& task : tasks) lane_of_[task.id] = task.lane;
    return {};
  }

  void On(const engine::SchedulerEvent& event) noexcept override {
    switch (event.kind) {
      case engine::EventKind::kTaskReady:
        (lane_of_[event.task] == engine::Lane::kIo ? io_ : compute_).push_back(event.task);
        break;
      case engine::EventKind::kStepBegin:
      case engine::EventKind::kError:
        compute_.clear();
        io_.clear();
        next_io_ = 0;
        break;
      case engine::EventKind::kTaskDone:
      case engine::EventKind::kStepEnd:
        break;
    }
  }

  engine::Action Next(engine::Lane lane) noexcept override {
    // Transfers start in ready order, not last first: the I/O lane is asked at another moment on
    // each rank, so "the last one now" is another transfer on each rank, and a collective that the
    // ranks start in different orders never ends.
    if (lane == engine::Lane::kIo) return next_io_ < io_.size() ? Run(io_[next_io_++]) : Hold();
    if (compute_.empty()) return Hold();
    const uint32_t task = compute_.back();
    compute_.pop_back();
    return Run(task);
  }

 private:
  static engine::Action Run(uint32_t task) noexcept {
    return {.kind = engine::ActionKind::kRun, .task = task};
  }
  static engine::Action Hold() noexcept { return {.kind = engine::ActionKind::kHold}; }

  std::vector<engine::Lane> lane_of_;  // by task
  std::vector<uint32_t> compute_;      // a stack
  std::vector<uint32_t> io_;           // all transfers of this step that are or were ready
  size_t next_io_ = 0;                 // the first in io_ that is not started
};

engine::Status Create(engine::Host&, const engine::Options&, engine::Object** out) noexcept {
  *out = new (std::nothrow) LifoScheduler;
  if (*out) return {};
  return engine::Status::Error(engine::StatusCode::kResourceExhausted, "no memory");
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    engine::DescribePlugin({.name = "lifo_sched",
                            .version = "1.0.0",
                            .kind = engine::PluginKind::kScheduler,
                            .doc = "runs first what became ready last",
                            .create = Create},
                           engine::NoOps(), engine::NoOptions());
