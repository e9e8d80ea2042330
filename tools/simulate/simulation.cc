#include "tools/simulate/simulation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/exec/step_loop.h"
#include "tools/simulate/served_link.h"

namespace engine::simulate {
namespace {

// Tickets are for ranks whose transfers depend on timing and wait for each other (Executor does so).
bool ByTicket(const NetworkModel& model, const Scheduler& scheduler) {
  return model.collective && scheduler.traits().order == TransferOrder::kLeader;
}

// Drives the loop of the executor with simulated time in place of threads. The rank is rank 0: its
// scheduler is the one that decides.
class Simulation final : exec::StepLoop::Calls {
 public:
  Simulation(const exec::TaskGraph& graph, std::span<const int64_t> compute_ns,
             const NetworkModel& model, Scheduler& scheduler, const SimulationOptions& options)
      : graph_(graph),
        compute_ns_(compute_ns),
        options_(options),
        loop_(graph, scheduler, options.scheduler_name),
        network_(model, options.ranks, ByTicket(model, scheduler)),
        served_(model, options.ranks) {}

  Result<SimulationResult> Run() {
    for (int64_t step = 1; step <= options_.steps; ++step) {
      if (step > 1) EndStep();
      step_begin_ns_ = now_ns_;
      waited_ns_ = 0;
      loop_.BeginStep(static_cast<uint64_t>(step), now_ns_);
      ENGINE_RETURN_IF_ERROR(Pump());
      ENGINE_RETURN_IF_ERROR(loop_.Drive(&exec::StepLoop::HeadDone, *this));
      ENGINE_RETURN_IF_ERROR(PassTo(now_ns_ + options_.step_overhead_ns));
    }
    loop_.BeginFlush();
    ENGINE_RETURN_IF_ERROR(Pump());
    ENGINE_RETURN_IF_ERROR(loop_.Drive(&exec::StepLoop::TailDone, *this));
    EndStep();
    return std::move(result_);
  }

 private:
  void EndStep() {
    result_.step_ns.push_back(now_ns_ - step_begin_ns_);
    result_.waited_ns.push_back(waited_ns_);
  }

  Status Run(const exec::Task& task) override {
    loop_.Start(task.info.id, now_ns_);
    ENGINE_RETURN_IF_ERROR(PassTo(now_ns_ + compute_ns_[task.info.id]));
    loop_.Finish(task.info.id, now_ns_);
    ENGINE_RETURN_IF_ERROR(Pump());
    return PassTo(now_ns_ + options_.task_overhead_ns);
  }

  Status Wait() override {
    const int64_t next = NextEvent();
    if (next == Network::kNever) return loop_.Stalled();
    waited_ns_ += next - now_ns_;
    return PassTo(next);
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
      for (const uint32_t id : ended_) loop_.Finish(id, now_ns_);
      ENGINE_RETURN_IF_ERROR(Pump());
    }
    now_ns_ = until_ns;
    return {};
  }

  int64_t NextEvent() const { return std::min(network_.NextEvent(), served_.NextEvent()); }

  Status Pump() {
    for (;;) {
      ENGINE_ASSIGN_OR_RETURN(const uint32_t task, loop_.NextTransfer());
      if (task == trace::kNoTask) return {};
      const TaskInfo& info = graph_.tasks[task].info;
      loop_.Start(task, now_ns_);
      if (info.transfer == TransferKind::kPush || info.transfer == TransferKind::kPull) {
        served_.Submit(task, info.transfer, info.size_bytes, info.priority, now_ns_);
      } else {
        network_.Submit(task, info.transfer, info.size_bytes, now_ns_);
      }
    }
  }

  const exec::TaskGraph& graph_;
  const std::span<const int64_t> compute_ns_;
  const SimulationOptions& options_;
  exec::StepLoop loop_;
  Network network_;
  ServedLink served_;  // pushes and pulls
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

Result<SimulationResult> Simulate(const exec::TaskGraph& graph, std::span<const int64_t> compute_ns,
                                  const NetworkModel& model, Scheduler& scheduler,
                                  const SimulationOptions& options) {
  ENGINE_CHECK(compute_ns.size() == graph.tasks.size(), "%zu times for %zu tasks",
               compute_ns.size(), graph.tasks.size());
  ENGINE_RETURN_IF_ERROR(
      scheduler.Begin(graph.infos).WithContext("scheduler '%s'", options.scheduler_name.c_str()));
  return Simulation(graph, compute_ns, model, scheduler, options).Run();
}

}  // namespace engine::simulate
