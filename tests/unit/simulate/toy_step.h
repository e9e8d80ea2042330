// Steps made of layers, and schedulers simple enough to say by hand what they do.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/exec/task_graph.h"
#include "tools/simulate/network.h"
#include "tools/simulate/simulation.h"
#include "tools/trace/timeline.h"

namespace engine::test {

constexpr int64_t kMs = 1'000'000;

struct ToyLayer {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
  int64_t bytes = 0;
  int slices = 1;
};

// forward 0 .. n-1, statistics, then per layer from the last: backward, accumulate, transfers; then
// the updates, one per slice. The forward task of a layer waits for its updates of the step before.
// `served`: pushes, and pulls in place of updates.
struct ToyStep {
  exec::TaskGraph graph;
  std::vector<int64_t> compute_ns;

  explicit ToyStep(const std::vector<ToyLayer>& model, uint64_t statistics_bytes = 0,
                   bool served = false) {
    const int n = static_cast<int>(model.size());
    for (int i = 0; i < n; ++i) {
      Add(TaskKind::kForward, "forward", i, model[i].forward_ns, i == 0 ? -1 : i - 1);
      graph.tasks.back().reads = {i};
      graph.tasks.back().opens_step = true;
    }
    Add(TaskKind::kTransfer, "statistics", n, 0, n - 1);
    graph.tasks.back().info.size_bytes = statistics_bytes;
    const int statistics = Last();
    graph.statistics = static_cast<uint32_t>(statistics);
    int before = n - 1;
    std::vector<std::pair<int, int>> transfers;  // and the layer of each
    for (int i = n - 1; i >= 0; --i) {
      Add(TaskKind::kBackward, "backward", i, model[i].backward_ns, before);
      before = Last();
      Add(TaskKind::kAccumulate, "accumulate", i, 0, before);
      const int accumulated = Last();
      for (int slice = 0; slice < model[i].slices; ++slice) {
        Add(TaskKind::kTransfer, "transfer", i, 0, accumulated);
        exec::Task& task = graph.tasks.back();
        task.tail = true;
        task.data = exec::TransferData::kGradients;
        task.info.bucket = static_cast<uint32_t>(transfers.size());
        task.info.needed_by = static_cast<uint32_t>(i);
        task.info.size_bytes = static_cast<uint64_t>(model[i].bytes / model[i].slices);
        if (served) task.info.transfer = TransferKind::kPush;
        transfers.emplace_back(Last(), i);
      }
    }
    for (const auto& [transfer, layer] : transfers) {
      Add(served ? TaskKind::kTransfer : TaskKind::kUpdate, served ? "pull" : "update", layer, 0,
          transfer);
      exec::Task& task = graph.tasks.back();
      if (served) {
        task.info.transfer = TransferKind::kPull;
        task.info.bucket = graph.tasks[transfer].info.bucket;
        task.info.size_bytes = graph.tasks[transfer].info.size_bytes;
        task.data = exec::TransferData::kParameters;
      }
      task.tail = true;
      task.completes = {layer};
      task.info.needed_by = static_cast<uint32_t>(layer);
      task.next_successors = {static_cast<uint32_t>(layer)};
      ++graph.tasks[layer].carried_count;
      if (!served) After(statistics);
    }
    for (exec::Task& task : graph.tasks) {
      task.info.name = task.name;
      graph.infos.push_back(task.info);
    }
  }

 private:
  int Last() const { return static_cast<int>(graph.tasks.size()) - 1; }
  void Add(TaskKind kind, const std::string& verb, int layer, int64_t duration_ns, int earlier) {
    const auto id = static_cast<uint32_t>(graph.tasks.size());
    graph.tasks.push_back({.info = {.id = id, .kind = kind, .sequence = id},
                           .name = verb + " " + std::to_string(layer)});
    if (kind == TaskKind::kTransfer) graph.tasks.back().info.lane = Lane::kIo;
    compute_ns.push_back(duration_ns);
    if (earlier >= 0) After(earlier);
  }
  void After(int earlier) {
    graph.tasks[earlier].successors.push_back(graph.tasks.back().info.id);
    ++graph.tasks.back().dependency_count;
  }
};

// Adds steps 1 .. `steps` of `graph` to a timeline: each task lasts as long as `duration_of` says, one
// after another with `gap_ns` between them, and steps have `between_ns` between them.
inline void RecordInOrder(const exec::TaskGraph& graph, uint64_t steps,
                          const std::function<int64_t(const exec::Task&)>& duration_of,
                          int64_t gap_ns, int64_t between_ns, trace::RankTimeline* timeline) {
  for (const exec::Task& task : graph.tasks) {
    timeline->tasks.push_back({.name = task.name, .kind = task.info.kind});
  }
  int64_t now = 1000;
  for (uint64_t step = 1; step <= steps; ++step) {
    const int64_t begin = now;
    int64_t ready = now;
    for (const exec::Task& task : graph.tasks) {
      const int64_t end = now + duration_of(task);
      timeline->spans.push_back(
          {.task = task.info.id, .step = step, .ready_ns = ready, .begin_ns = now, .end_ns = end});
      ready = end;
      now = end + gap_ns;
    }
    now = ready + between_ns;
    timeline->spans.push_back(
        {.kind = trace::SpanKind::kStep, .step = step, .begin_ns = begin, .end_ns = now});
  }
}

// Takes compute tasks in the order of a single thread, and transfers as the derived class says.
class ToyScheduler : public SchedulerBase {
 public:
  SchedulerTraits traits() const noexcept override { return {}; }
  Status Plan(const ModelInfo&, PlanSink&) noexcept override { return {}; }
  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    tasks_.assign(tasks.begin(), tasks.end());
    return {};
  }
  void On(const SchedulerEvent& event) noexcept override {
    events.push_back(event);
    if (event.kind != EventKind::kTaskReady) return;
    (tasks_[event.task].lane == Lane::kIo ? io_ : compute_).push_back(event.task);
  }
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo) return NextTransfer();
    return Take(compute_, std::min_element(compute_.begin(), compute_.end()));
  }

  std::vector<SchedulerEvent> events;

 protected:
  using Tasks = std::vector<uint32_t>;
  virtual Action NextTransfer() noexcept = 0;
  static Action Take(Tasks& ready, Tasks::iterator which) {
    if (which == ready.end()) return {};
    const uint32_t task = *which;
    ready.erase(which);
    return {.kind = ActionKind::kRun, .task = task};
  }

  std::vector<TaskInfo> tasks_;
  Tasks compute_, io_;
};

// In order of arrival.
class ToyFifo : public ToyScheduler {
 public:
  Action NextTransfer() noexcept override { return Take(io_, io_.begin()); }
};

// Nothing of a step before its backward pass has ended, but the statistics; then in order of
// arrival.
class ToySequential : public ToyScheduler {
 public:
  void On(const SchedulerEvent& event) noexcept override {
    ToyScheduler::On(event);
    if (event.kind == EventKind::kStepBegin) backward_ended_ = false;
    if (event.kind == EventKind::kBackwardEnd) backward_ended_ = true;
  }
  Action NextTransfer() noexcept override {
    for (auto it = io_.begin(); it != io_.end(); ++it) {
      if (backward_ended_ || tasks_[*it].bucket == UINT32_MAX) return Take(io_, it);
    }
    return {};
  }

 private:
  bool backward_ended_ = false;
};

// What the next forward pass needs first, at most `credit` bytes at a time.
class ToyPriority : public ToyScheduler {
 public:
  explicit ToyPriority(uint64_t credit, TransferOrder order = TransferOrder::kStatic)
      : credit_(credit), order_(order) {}
  SchedulerTraits traits() const noexcept override { return {.order = order_}; }
  void On(const SchedulerEvent& event) noexcept override {
    ToyScheduler::On(event);
    if (event.kind != EventKind::kTaskDone || tasks_[event.task].lane != Lane::kIo) return;
    used_ -= tasks_[event.task].size_bytes;
  }
  Action NextTransfer() noexcept override {
    const auto first = std::min_element(io_.begin(), io_.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(tasks_[a].needed_by, a) < std::pair(tasks_[b].needed_by, b);
    });
    if (first == io_.end()) return {};
    const uint64_t size = tasks_[*first].size_bytes;
    if (used_ > 0 && used_ + size > credit_) return {};
    used_ += size;
    most_used = std::max(most_used, used_);
    return Take(io_, first);
  }

  uint64_t most_used = 0;

 private:
  const uint64_t credit_;
  const TransferOrder order_;
  uint64_t used_ = 0;
};

// A link of 1 byte per nanosecond of which a transfer between two ranks occupies as many
// nanoseconds as it has bytes, and nothing else.
inline simulate::NetworkModel PlainLink() {
  return {.bits_per_second = 8e9,
          .goodput = 1,
          .latency_ns = 0,
          .header_bytes = 0,
          .max_in_flight = 1,
          .ticket_ns = 0};
}

}  // namespace engine::test
