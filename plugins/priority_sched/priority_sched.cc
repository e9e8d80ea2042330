// priority_sched: the compute lane takes what lets a gradient leave soonest; transfers start as
// soon as they are ready.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <numeric>
#include <tuple>
#include <vector>

#include "engine/plugin.h"

namespace engine::priority_sched {
namespace {

// Whether the compute lane prefers `a` to `b` when both are ready:
//  1. accumulations and hooks first: they are short, and a gradient waits behind them to travel;
//  2. then larger priority;
//  3. then forward and backward before updates, because nothing of this step waits for an update,
//     while each backward task that it delays delays every gradient behind it;
//  4. then the order of a single thread;
//  5. then the id, which makes the order total.
// It depends on constants of the plan only, so it is the same in every step and on every rank.
bool RunsBefore(const TaskInfo& a, const TaskInfo& b) noexcept {
  const auto key = [](const TaskInfo& task) {
    const bool urgent = task.kind == TaskKind::kAccumulate || task.kind == TaskKind::kHook;
    return std::tuple(!urgent, -int64_t{task.priority}, task.kind == TaskKind::kUpdate,
                      task.sequence, task.id);
  };
  return key(a) < key(b);
}

// The ready tasks of the compute lane: a binary heap of positions in the order of RunsBefore, which
// is computed once, so that a comparison on the step path is one of two integers.
class ReadyHeap {
 public:
  void Reserve(std::span<const TaskInfo> tasks) {
    std::vector<uint32_t> order(tasks.size());  // indices into `tasks`
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return RunsBefore(tasks[a], tasks[b]); });
    position_of_.resize(tasks.size());
    task_at_.resize(tasks.size());
    for (uint32_t position = 0; position < order.size(); ++position) {
      task_at_[position] = tasks[order[position]].id;
      position_of_[task_at_[position]] = position;
    }
    heap_.clear();
    heap_.reserve(tasks.size());
  }
  void Clear() noexcept { heap_.clear(); }
  bool empty() const noexcept { return heap_.empty(); }
  void Push(uint32_t task) noexcept {
    ENGINE_CHECK(heap_.size() < heap_.capacity(), "task %u was offered twice", task);
    heap_.push_back(position_of_[task]);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  uint32_t Pop() noexcept {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint32_t position = heap_.back();
    heap_.pop_back();
    return task_at_[position];
  }

 private:
  std::vector<uint32_t> position_of_;  // by task
  std::vector<uint32_t> task_at_;      // by position
  std::vector<uint32_t> heap_;         // positions, smallest on top
};

// The ready transfers in order of arrival. One slot per task is enough, because a task is ready at
// most once at a time.
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

// Transfers start in ready order, because collectives need one order on all ranks, and that is the
// one order that follows from the plan without messages: a transfer becomes ready through forward,
// backward, accumulate and local hook tasks only, and these wait for each other but never for a
// transfer of the same step. The compute order is total, so the tasks that a transfer does release
// (reduced hooks, updates) come at a different time on each rank, but never change which of the
// others comes first.
class PriorityScheduler final : public Scheduler {
 public:
  explicit PriorityScheduler(const Options& options) noexcept
      : fuse_bytes_(options.Int("fuse_bytes")) {}

  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override;
  Status Begin(std::span<const TaskInfo> tasks) noexcept override;
  void On(const SchedulerEvent& event) noexcept override;
  Action Next(Lane lane) noexcept override;

 private:
  const int64_t fuse_bytes_;
  std::vector<Lane> lane_of_;  // by task
  ReadyHeap compute_;
  ReadyRing io_;
};

// One unit per run of gradients that become ready one after another, closed as soon as it holds
// `fuse_bytes`. A small gradient thus travels with the big one behind it instead of alone: on a
// socket a transfer costs about 100 us before its first byte.
Status PriorityScheduler::Plan(const ModelInfo& model, PlanSink& sink) noexcept {
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
                         "priority_sched has no memory to plan the units of %zu parameters",
                         model.parameters.size());
  }
  return {};
}

Status PriorityScheduler::Begin(std::span<const TaskInfo> tasks) noexcept {
  try {
    lane_of_.resize(tasks.size());
    compute_.Reserve(tasks);
    io_.Reserve(tasks.size());
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "priority_sched has no memory to order %zu tasks", tasks.size());
  }
  for (const TaskInfo& task : tasks) lane_of_[task.id] = task.lane;
  return {};
}

void PriorityScheduler::On(const SchedulerEvent& event) noexcept {
  if (event.kind == EventKind::kTaskReady) {
    if (lane_of_[event.task] == Lane::kIo) {
      io_.Push(event.task);
    } else {
      compute_.Push(event.task);
    }
  } else if (event.kind == EventKind::kError) {
    compute_.Clear();
    io_.Clear();
  }
}

Action PriorityScheduler::Next(Lane lane) noexcept {
  if (lane == Lane::kIo) {
    return io_.empty() ? Action{} : Action{.kind = ActionKind::kRun, .task = io_.Pop()};
  }
  return compute_.empty() ? Action{} : Action{.kind = ActionKind::kRun, .task = compute_.Pop()};
}

Status Create(Host&, const Options& options, Object** out) noexcept {
  *out = new (std::nothrow) PriorityScheduler(options);
  if (*out) return {};
  return Status::Error(StatusCode::kResourceExhausted, "no memory for a scheduler");
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "priority_sched",
                    .version = "1.0.0",
                    .kind = PluginKind::kScheduler,
                    .doc = "runs first what lets a gradient leave soonest; sends it at once",
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

}  // namespace engine::priority_sched
