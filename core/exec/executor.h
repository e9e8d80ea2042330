// Runs training steps: keeps track of what is ready, asks the scheduler what comes next, runs it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/exec/model_memory.h"
#include "core/exec/task_graph.h"
#include "core/exec/transfer_lane.h"
#include "core/plugin/plugin_set.h"

namespace engine {

struct StepInput {
  const void* input = nullptr;
  const int32_t* target = nullptr;
  int64_t samples = 0;
  uint64_t step = 1;  // from 1
  float learning_rate = 0;
  bool stop = false;  // this rank was asked to stop
};

// What one task did in the last step, in the order of the ends.
struct TaskRecord {
  uint32_t task = 0;
  int64_t begin_ns = 0;  // steady clock; of a transfer: its submission
  int64_t end_ns = 0;    // of a transfer: when the compute lane learned of its end
};

struct StepResult {
  StepStatistics statistics;  // summed over all ranks
  double seconds = 0;
  double waited_seconds =
      0;  // of them the compute lane had nothing to do but wait: exposed communication
};

struct ExecutorOptions {
  RankInfo rank;
  uint64_t seed = 1;
  int64_t timeout_ms = 30000;  // of a transfer
  std::string communicator_name, scheduler_name, optimizer_name;
  std::vector<std::string> hook_names;
};

// One rank's training. Used from one thread.
class Executor {
 public:
  // Plans the step. `plugins` is borrowed. kPlugin when the scheduler's plan is unusable.
  static Result<std::unique_ptr<Executor>> Create(Graph graph, PluginSet& plugins,
                                                  const OpFactory& factory,
                                                  const ExecutorOptions& options);
  // Aborts the communicator if transfers are under way.
  ~Executor();

  // Gives every rank the parameters of rank 0. [setup]
  Status BroadcastParameters();

  // One step: forward, backward, transfers, updates. After an error the executor is of no more use.
  // No allocation of its own after the first step.
  Result<StepResult> Step(const StepInput& input);

  // One transfer outside of a step, waited for: for evaluation. `count` elements, in place, summed
  // over ranks.
  Status AllReduce(DType dtype, void* data, int64_t count);

  ModelMemory& memory() { return *memory_; }
  const ModelMemory& memory() const { return *memory_; }
  const TaskGraph& tasks() const { return tasks_; }
  const std::vector<TaskRecord>& last_step() const { return records_; }
  // Parameters that are trainable but that the loss does not reach: they are neither sent nor
  // updated.
  const std::vector<std::string>& unreached_parameters() const { return unreached_; }

  OptimizerTraits optimizer_traits() const { return optimizer_traits_; }
  // State `index` of the optimizer for graph parameter `parameter`; null data for one that is not
  // trained.
  TensorView optimizer_state(int32_t parameter, int32_t index) const;

 private:
  enum class TaskState : uint8_t { kWaiting, kReady, kStarted, kDone };

  Executor(PluginSet& plugins, const ExecutorOptions& options);
  Status Plan(Graph graph, const OpFactory& factory);
  Status BeginStep(const StepInput& input);
  Status RunTasks(const StepInput& input, StepResult* result);
  void MakeReady(uint32_t task);
  void Finish(uint32_t task);
  Status TakeCompletions();
  void ScaleToMean();
  Status StartTransfers();
  Status WaitForTransfer(StepResult* result);
  Status CheckAction(const Action& action, Lane lane);
  Transfer MakeTransfer(const Task& task);
  Status RunTask(const Task& task, const StepInput& input);
  Status RunHook(const Task& task);
  Status RunUpdate(const Task& task, const StepInput& input);
  Status WaitForWork(const Transfer& transfer);
  Status GiveUp(Status status);

  PluginSet& plugins_;
  const ExecutorOptions options_;
  OptimizerTraits optimizer_traits_;
  std::vector<HookTraits> hook_traits_;
  std::unique_ptr<ModelMemory> memory_;
  std::vector<DeviceBuffer> states_;  // of the optimizer, each in the layout of the gradients
  TaskGraph tasks_;
  std::unique_ptr<TransferLane> transfers_;
  std::vector<std::string> unreached_;

  // Of the step under way.
  std::vector<TaskState> state_;
  std::vector<int32_t> waits_for_;
  std::vector<float> gradient_scale_;  // per trainable parameter
  std::vector<int64_t> begin_ns_;
  std::vector<TaskRecord> records_;
  size_t ready_compute_ = 0;
  uint64_t sequence_ = 0;  // of transfers, over the whole run
};

}  // namespace engine
