// What the tasks of a step do, and where its numbers (statistics, scales of gradients) are: here in
// the memory of the host, whose work is done when a call returns. DeviceStep (device_step.cc)
// overrides what differs on an accelerator.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/exec/order_agreement.h"
#include "core/exec/replicas.h"
#include "core/exec/submitter.h"
#include "core/exec/update_strategy.h"
#include "core/exec/wire.h"
#include "core/plugin/loss_scale.h"
#include "core/plugin/plugin_set.h"

namespace engine::exec {

class StepRunner;

// What a step works with; all borrowed.
struct StepParts {
  plugin::PluginSet& plugins;
  const ExecutorOptions& options;
  ModelMemory& memory;
  const TaskGraph& tasks;
  UpdateStrategy& updates;
  OrderAgreement& order;  // guarded by the lock of the runner, but for what needs none
  Submitter& submitter;
  Submitter* gathers = nullptr;              // of ops, if it has a communicator of its own
  Wire* wire = nullptr;                      // null: gradients travel as they are
  CommunicatorReplicas* replicas = nullptr;  // null: no op asks for them, or one rank
};

class HostStep {
 public:
  explicit HostStep(const StepParts& parts);
  virtual ~HostStep() = default;

  const StepParts& parts() const { return parts_; }
  // Before the first step. `runner` is borrowed.
  void Attach(StepRunner& runner) { runner_ = &runner; }

  // Of Executor::Step, and a task of it. [compute-lane]
  virtual Result<StepResult> Step(const StepInput& input);
  virtual Status Run(const Task& task);

  // With the lock of the runner. What `task` of `step` moves; without its place in the order.
  virtual Transfer MakeTransfer(const Task& task, uint64_t step);
  // The transfer has ended.
  Status TakeResult(const Task& task) {
    return task.data == TransferData::kStatistics ? TakeStatistics() : Status();
  }

  // Whether the end of a call is not the end of the work: DeviceStep, which is also told before a
  // transfer is submitted, and after it. `*follower`, if it is set, shall wait for its end.
  virtual bool queues() const { return false; }
  virtual Status BeginTransfer(const Task& /*task*/, Stream** /*follower*/) { return {}; }
  virtual Status EndTransfer(const Task& /*task*/) { return {}; }

  // The statistics that Step did not give. [compute-lane]
  virtual Result<StepResult> Remaining() { return StepResult(); }
  // Whether nothing is under way on the device; waits for that. [compute-lane]
  virtual bool settled() const { return true; }
  virtual Status Settle() { return {}; }
  // The run is given up: before the communicator is aborted, and before memory is freed.
  virtual void Abandon() {}
  virtual void End() noexcept {}

 protected:
  Status Begin(const StepInput& input);
  // The sum of the statistics over all ranks is there.
  virtual Status TakeStatistics();
  // What the loss op has made, or a copy of it where ranks or micro-batches add theirs.
  StepStatistics* summed() const { return parts_.memory.statistics() + (adds_up_ ? 1 : 0); }
  // Copies what the loss op has made of a micro-batch to that copy, or adds it there.
  virtual Status KeepStatistics(bool add);
  virtual Stream* StreamOf(const Task& /*task*/) const { return parts_.memory.stream(); }
  // Behind the last one is a 1, for local hooks.
  virtual float* ScaleAt(size_t index) {
    return index < gradient_scale_.size() ? &gradient_scale_[index] : &local_scale_;
  }
  virtual Status Update(UpdateCall& call, const graph::Parameter& /*parameter*/, size_t /*scale*/) {
    return parts_.plugins.optimizer->Update(call);
  }
  virtual Status EndUpdates() { return {}; }

  const StepParts parts_;
  StepRunner* runner_ = nullptr;
  StepInput input_;
  StepScalars now_;                               // of the step at hand
  float loss_scale_ = parts_.options.loss_scale;  // likewise, from its loss on
  // Written before the tasks that read them become ready: see Task::first_scale.
  std::vector<float> gradient_scale_;

 private:
  Status BeginMicroBatch(int64_t index);
  Status RunMicroBatches();
  Status BeginBackward();
  Status RunHook(const Task& task);
  Status RunUpdate(const Task& task);
  uint64_t Skipped() const { return moving_scale_ == nullptr ? 0 : moving_scale_->skipped(); }

  plugin::LossScale* moving_scale_ = nullptr;  // null: the scale stays
  uint64_t skipped_before_ = 0;  // the updates at hand; once there are more, these do nothing
  std::vector<const base::CallWatch::Call*> begins_;  // of hooks
  CallContext call_context_;                          // of the micro-batch at hand
  bool backward_begun_ = false;
  StepInput tail_;                       // of the updates at hand
  std::span<float> observed_;            // sums of the hook that has observed last
  std::vector<size_t> observed_counts_;  // of each hook; 0: not known yet
  float local_scale_ = 1;
  float own_count_ = 0;  // weight of the targets of this rank
  // Whether ranks or micro-batches add to the statistics.
  const bool adds_up_ =
      parts_.tasks.statistics != trace::kNoTask || parts_.options.micro_batches > 1;
  // Of all ranks. Written with the lock of the runner, by the thread that takes the end of the
  // transfer, before the head of the step is done; read after that.
  StepStatistics statistics_;
};

// The step on an accelerator: nothing that it computes is known to the host when the work is queued.
// kConfig names what cannot work with the memory of the device.
Result<std::unique_ptr<HostStep>> MakeDeviceStep(const StepParts& parts);

}  // namespace engine::exec
