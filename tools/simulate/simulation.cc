#include "tools/simulate/simulation.h"

#include <algorithm>
#include <numeric>

#include "core/exec/step_state.h"
#include "tools/simulate/served_link.h"

namespace engine {
namespace {

// Tickets are for ranks whose transfers depend on timing and must not differ (Executor does so).
bool ByTicket(const NetworkModel& model, const Scheduler& scheduler) {
  return model.ordered && scheduler.traits().order == TransferOrder::kLeader;
}

// What Executor does, with simulated time in place of threads. The rank is rank 0: its scheduler is
// the one that decides.
class Simulation {
 public:
  Simulation(const TaskGraph& graph, size_t parameters, std::span<const int64_t> compute_ns,
             const NetworkModel& model, Scheduler& scheduler, const SimulationOptions& options)
      : graph_(graph),
        compute_ns_(compute_ns),
        scheduler_(scheduler),
        options_(options),
        state_(graph, parameters, scheduler),
        network_(model, options.ranks, ByTicket(model, scheduler)),
        served_(model, options.ranks) {
    has_statistics_ = std::any_of(graph.tasks.begin(), graph.tasks.end(), IsStatistics);
  }

  Result<SimulationResult> Run() {
    for (int64_t step = 1; step <= options_.steps; ++step) {
      BeginStep(static_cast<uint64_t>(step));
      ENGINE_RETURN_IF_ERROR(Pump());
      ENGINE_RETURN_IF_ERROR(Drive(&Simulation::HeadDone));
      ENGINE_RETURN_IF_ERROR(PassTo(now_ns_ + options_.step_overhead_ns));
    }
    scheduler_.On({.kind = EventKind::kFlush, .step = static_cast<uint64_t>(options_.steps)});
    ENGINE_RETURN_IF_ERROR(Pump());
    ENGINE_RETURN_IF_ERROR(Drive(&Simulation::TailDone));
    EndStep();
    return std::move(result_);
  }

 private:
  static bool IsStatistics(const Task& task) {
    return task.info.kind == TaskKind::kTransfer && task.data == TransferData::kStatistics;
  }
  bool HeadDone() const { return state_.backward_done() && statistics_known_; }
  bool TailDone() const { return state_.tail_left() == 0; }

  void BeginStep(uint64_t step) {
    if (step > 1) EndStep();
    step_begin_ns_ = now_ns_;
    waited_ns_ = 0;
    statistics_known_ = !has_statistics_;
    state_.BeginStep(step, now_ns_);
  }

  void EndStep() {
    result_.step_ns.push_back(now_ns_ - step_begin_ns_);
    result_.waited_ns.push_back(waited_ns_);
  }

  Status Drive(bool (Simulation::*done)() const) {
    while (!(this->*done)()) {
      const Action action = scheduler_.Next(Lane::kCompute);
      ENGINE_RETURN_IF_ERROR(action.kind == ActionKind::kHold ? WaitForChange() : RunNext(action));
    }
    return {};
  }

  Status RunNext(const Action& action) {
    ENGINE_RETURN_IF_ERROR(state_.Check(action, Lane::kCompute, options_.scheduler_name.c_str()));
    const Task& task = graph_.tasks[action.task];
    if (task.info.kind == TaskKind::kForward) ENGINE_RETURN_IF_ERROR(state_.CheckVersions(task));
    state_.Start(action.task, now_ns_);
    ENGINE_RETURN_IF_ERROR(PassTo(now_ns_ + compute_ns_[action.task]));
    state_.Finish(action.task, now_ns_);
    ENGINE_RETURN_IF_ERROR(Pump());
    return PassTo(now_ns_ + options_.task_overhead_ns);
  }

  Status WaitForChange() {
    const int64_t next = NextEvent();
    if (next == Network::kNever) return Stalled();
    waited_ns_ += next - now_ns_;
    return PassTo(next);
  }

  Status Stalled() const {
    const Task* task = state_.FirstReady();
    if (task == nullptr) {
      return Status::Error(StatusCode::kInternal, "no task is ready and none is under way");
    }
    return Status::Error(StatusCode::kTimeout,
                         "stalled: scheduler '%s' holds '%s' although nothing is under way",
                         options_.scheduler_name.c_str(), task->name.c_str());
  }

  // Lets the network go on until then. Transfers that end on the way start others at once.
  Status PassTo(int64_t until_ns) {
    for (;;) {
      const int64_t next = NextEvent();
      if (next > until_ns) break;
      now_ns_ = next;
      ended_.clear();
      network_.AdvanceTo(now_ns_, &ended_);
      served_.AdvanceTo(now_ns_, &ended_);
      if (ended_.empty()) continue;
      for (uint32_t id : ended_) FinishTransfer(id);
      ENGINE_RETURN_IF_ERROR(Pump());
    }
    now_ns_ = until_ns;
    return {};
  }

  int64_t NextEvent() const { return std::min(network_.NextEvent(), served_.NextEvent()); }

  void FinishTransfer(uint32_t id) {
    statistics_known_ |= IsStatistics(graph_.tasks[id]);
    state_.Finish(id, now_ns_);
  }

  Status Pump() {
    for (;;) {
      const Action action = scheduler_.Next(Lane::kIo);
      if (action.kind == ActionKind::kHold) return {};
      ENGINE_RETURN_IF_ERROR(state_.Check(action, Lane::kIo, options_.scheduler_name.c_str()));
      const TaskInfo& info = graph_.tasks[action.task].info;
      state_.Start(action.task, now_ns_);
      if (info.transfer == TransferKind::kPush || info.transfer == TransferKind::kPull) {
        served_.Submit(action.task, info.transfer, info.size_bytes, info.priority, now_ns_);
      } else {
        network_.Submit(action.task, info.transfer, info.size_bytes, now_ns_);
      }
    }
  }

  const TaskGraph& graph_;
  const std::span<const int64_t> compute_ns_;
  Scheduler& scheduler_;
  const SimulationOptions& options_;
  StepState state_;
  Network network_;
  ServedLink served_;  // pushes and pulls
  bool has_statistics_ = false;
  bool statistics_known_ = false;
  int64_t now_ns_ = 0;
  int64_t step_begin_ns_ = 0;
  int64_t waited_ns_ = 0;
  std::vector<uint32_t> ended_;
  SimulationResult result_;
};

// Of the steps after the first fifth (at least three, if there are so many) and before the last.
double MeanOfSettled(const std::vector<int64_t>& values) {
  if (values.empty()) return 0;
  const size_t end = std::max<size_t>(values.size() - 1, 1);
  const size_t begin = std::min(std::max<size_t>(3, values.size() / 5), end - 1);
  const auto sum = std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                   values.begin() + static_cast<std::ptrdiff_t>(end), int64_t{0});
  return static_cast<double>(sum) / static_cast<double>(end - begin);
}

}  // namespace

double SimulationResult::MeanStepNs() const {
  return MeanOfSettled(step_ns);
}

double SimulationResult::MeanWaitedNs() const {
  return MeanOfSettled(waited_ns);
}

Result<SimulationResult> Simulate(const TaskGraph& graph, size_t parameters,
                                  std::span<const int64_t> compute_ns, const NetworkModel& model,
                                  Scheduler& scheduler, const SimulationOptions& options) {
  ENGINE_CHECK(compute_ns.size() == graph.tasks.size(), "%zu times for %zu tasks",
               compute_ns.size(), graph.tasks.size());
  ENGINE_RETURN_IF_ERROR(
      scheduler.Begin(graph.infos).WithContext("scheduler '%s'", options.scheduler_name.c_str()));
  return Simulation(graph, parameters, compute_ns, model, scheduler, options).Run();
}

}  // namespace engine
