// fifo_sched: both lanes take ready tasks in order of arrival. The baseline for other schedulers.
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "engine/plugin.h"

namespace engine::fifo_sched {
namespace {

// The ready tasks of one lane. A task is ready at most once at a time, so one slot per task is
// enough and a push never has to grow it.
class ReadyRing {
 public:
  void Reserve(size_t task_count) { slots_.assign(task_count, 0); }
  void Clear() noexcept { size_ = 0; }
  bool empty() const noexcept { return size_ == 0; }
  void Push(uint32_t task) noexcept {
    ENGINE_CHECK(size_ < slots_.size(), "task %u was offered twice", task);
    const size_t tail = head_ + size_++;
    slots_[tail < slots_.size() ? tail : tail - slots_.size()] = task;
  }
  uint32_t Pop() noexcept {
    const uint32_t task = slots_[head_];
    if (++head_ == slots_.size()) head_ = 0;
    --size_;
    return task;
  }

 private:
  std::vector<uint32_t> slots_;
  size_t head_ = 0;
  size_t size_ = 0;
};

// Why all ranks submit transfers in one order although transfers end at different times on each:
// a transfer becomes ready through forward, backward, accumulate and local hook tasks only, and
// these wait for each other but never for a transfer of the same step. In a queue the tasks that a
// transfer does release (reduced hooks, updates) shift the others in time and never against each
// other.
class FifoScheduler final : public Scheduler {
 public:
  explicit FifoScheduler(const Options& options) noexcept
      : fuse_bytes_(options.Int("fuse_bytes")) {}

  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override;
  Status Begin(std::span<const TaskInfo> tasks) noexcept override;
  void On(const SchedulerEvent& event) noexcept override;
  Action Next(Lane lane) noexcept override;

 private:
  ReadyRing& ready(Lane lane) noexcept { return ready_[static_cast<size_t>(lane)]; }

  const int64_t fuse_bytes_;
  std::vector<Lane> lane_of_;  // by task
  ReadyRing ready_[2];         // by lane
};

// One unit per run of gradients that become ready one after another, closed as soon as it holds
// `fuse_bytes`. A small gradient thus travels with the big one behind it instead of alone: on a
// socket a transfer costs about 100 us before its first byte.
Status FifoScheduler::Plan(const ModelInfo& model, PlanSink& sink) noexcept {
  try {
    std::vector<UnitSpan> unit;
    int64_t unit_bytes = 0;
    for (const ParameterInfo& parameter : model.parameters) {
      unit.push_back({.parameter = parameter.id, .count = parameter.count});
      unit_bytes += parameter.count * static_cast<int64_t>(sizeof(float));
      if (unit_bytes < fuse_bytes_) continue;
      sink.AddUnit(unit, 0);
      unit.clear();
      unit_bytes = 0;
    }
    if (!unit.empty()) sink.AddUnit(unit, 0);
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "fifo_sched has no memory to plan the units of %zu parameters",
                         model.parameters.size());
  }
  return {};
}

Status FifoScheduler::Begin(std::span<const TaskInfo> tasks) noexcept {
  try {
    lane_of_.resize(tasks.size());
    for (ReadyRing& ring : ready_) ring.Reserve(tasks.size());
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "fifo_sched has no memory to order %zu tasks", tasks.size());
  }
  for (const TaskInfo& task : tasks) lane_of_[task.id] = task.lane;
  return {};
}

void FifoScheduler::On(const SchedulerEvent& event) noexcept {
  if (event.kind == EventKind::kTaskReady) {
    ready(lane_of_[event.task]).Push(event.task);
  } else if (event.kind == EventKind::kError) {
    for (ReadyRing& ring : ready_) ring.Clear();
  }
}

Action FifoScheduler::Next(Lane lane) noexcept {
  ReadyRing& ring = ready(lane);
  if (ring.empty()) return {};
  return {.kind = ActionKind::kRun, .task = ring.Pop()};
}

Status Create(Host&, const Options& options, Object** out) noexcept {
  *out = new (std::nothrow) FifoScheduler(options);
  if (*out) return {};
  return Status::Error(StatusCode::kResourceExhausted, "no memory for a scheduler");
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "fifo_sched",
                    .version = "1.0.0",
                    .kind = PluginKind::kScheduler,
                    .doc = "runs ready tasks and sends ready gradients in order of arrival",
                    .create = Create},
                   NoOps(),
                   std::array{OptionSpec{
                       .name = "fuse_bytes",
                       .type = OptionType::kInt,
                       .default_value = "65536",
                       .min = 0,
                       .max = 1 << 30,
                       .doc = "gradients that become ready one after another travel together until "
                              "they are this many bytes; 0: each alone"}});

}  // namespace engine::fifo_sched
