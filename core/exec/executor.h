// One rank's training: plans the step, runs it, and does what comes between steps. What is in it:
//
//   StepRunner       threads, lock, failure        StepLoop        what is ready, and the scheduler
//   HostStep         what tasks do                 UpdateStrategy  how gradients become parameters
//   OrderAgreement   one order on all ranks        Wire            gradients in another form
//   BlockingTransfers  outside of steps
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/exec/executor_options.h"
#include "core/exec/host_step.h"
#include "core/exec/order_agreement.h"
#include "core/exec/replicas.h"
#include "core/exec/served_updates.h"
#include "core/exec/step_runner.h"
#include "core/exec/submitter.h"
#include "core/exec/wire.h"
#include "core/plugin/plugin_set.h"
#include "core/trace/recorder.h"

namespace engine::exec {

// The first layer whose op sees all ranks, or null: training on several ranks needs
// ExecutorOptions::replicas then.
const graph::Node* FirstThatGathers(const graph::Graph& graph);

// Used from one thread, [compute-lane].
class Executor {
 public:
  // Plans the step. `plugins` and `store` are borrowed; `store` carries what ranks must tell each
  // other about the order of transfers and may be null in a world of one. kPlugin when the
  // scheduler's plan is unusable, kConfig when plugins do not go together.
  static Result<std::unique_ptr<Executor>> Create(graph::Graph graph, plugin::PluginSet& plugins,
                                                  const plugin::OpFactory& factory,
                                                  base::Store* store,
                                                  const ExecutorOptions& options);

  // Ends what is under way; its deleter calls it. False when a communicator does not let go of the
  // memory that it was lent: then all of this stays, and the log says so.
  bool End();

  // Gives every rank the parameters of rank 0, and servers those and the optimizer states that were
  // set. A rank that takes the place of a lost one gets what servers have. [setup]
  Status ShareParameters() { return updates_->ShareParameters(*blocking_); }
  // Gives every rank the buffers (Parameter::buffer) of rank 0, which may differ where ops keep
  // statistics of their rank alone. For evaluation and checkpoints, after Flush; does nothing when
  // no step was made since. Not where ranks go asynchronously: each keeps its own.
  Status ShareBuffers();

  // Forward and backward of one step. Returns when they are done and the statistics are known;
  // transfers of gradients and updates go on, and the next step begins while they do. On an
  // accelerator it returns when all of it is queued and the statistics of the step before are
  // known. After an error every later step fails. No allocation of its own after the first step.
  Result<StepResult> Step(const StepInput& input);
  // The statistics of the last step if Step did not give them yet (StepResult::step is 0 if it
  // did). After Flush.
  Result<StepResult> Remaining();
  // Ends whatever waits, and what comes later, with `reason`; the first one stays. [any-thread]
  void Abort(const Status& reason) { runner_->Abort(reason); }

  // After a failure, before the end: ends what is under way, makes the updates that wait for nobody
  // any more, and returns the step that parameters, buffers and states are of: 0 if none has begun, -1 if
  // it is not one (ExecutorOptions::keep_states). Nothing of this computes or sends after that; again it
  // says the same.
  Result<int64_t> Salvage();

  // Waits until every parameter is updated, on an accelerator by the device. Needed before anything
  // but Step looks at parameters, optimizer states or the communicator; does nothing when it has
  // been done. Collective when updates are sharded: every rank gets all parameters, of which it may
  // have had but the rounded copies.
  Status Flush();
  bool flushed() const;
  // Sums up host memory over ranks, which may come at any time (ExecutorOptions::arrival_timeout_ms). After Flush.
  Status AllReduce(std::span<float> numbers);

  ModelMemory& memory() { return *memory_; }
  const ModelMemory& memory() const { return *memory_; }
  const TaskGraph& tasks() const { return tasks_; }
  // How parameters are updated, and where the states of the optimizer are.
  UpdateStrategy& updates() const { return *updates_; }
  // For its calls. After Flush.
  BlockingTransfers& transfers() const { return *blocking_; }
  // Null: gradients travel as they are.
  const Wire* wire() const { return wire_.get(); }
  const plugin::PluginSet& plugins() const { return plugins_; }
  const ExecutorOptions& options() const { return options_; }
  // Brings states of the optimizer, where they are on other ranks or at servers, together on rank 0,
  // until updates().DropStates(). Collective; after Flush.
  Status CollectStates();

  // What happened so far; after Flush.
  trace::SpanRecorder recorded() const { return runner_->recorded(); }
  // Parameters that are trainable but that the loss does not reach: they are neither sent nor
  // updated.
  const std::vector<std::string>& unreached_parameters() const { return unreached_; }

 private:
  Executor(plugin::PluginSet& plugins, base::Store* store, const ExecutorOptions& options);
  Status Plan(graph::Graph graph, const plugin::OpFactory& factory);
  Status MakeMemory(graph::Graph graph, const plugin::OpFactory& factory);
  Status MakeTasks();
  Status MakeReplicas();
  Result<UpdateGate> CheckTraits() const;
  Status MakeStep();
  SharedMemory* MemoryOfTransfers() const;

  plugin::PluginSet& plugins_;
  base::Store* const store_;
  ExecutorOptions options_;  // keep_states: where this keeps steps
  const bool on_accelerator_;
  std::unique_ptr<UpdateStrategy> updates_;
  WireChoice wire_choice_;
  std::unique_ptr<ModelMemory> memory_;
  Submitter submitter_;
  std::unique_ptr<Submitter> gathers_;              // null: ops have no communicator of their own
  std::unique_ptr<CommunicatorReplicas> replicas_;  // null: no op asks for them, or one rank
  std::unique_ptr<Wire> wire_;                      // null: gradients travel as they are
  graph::DeviceBuffer sums_;                        // of AllReduce
  TaskGraph tasks_;
  std::vector<std::string> unreached_;
  bool buffers_differ_ = false;  // perhaps, between ranks
  std::optional<int64_t> salvaged_;
  // With keep_states: the buffers before an odd and an even step, whose forward pass changes them.
  std::vector<float> buffers_before_[2];
  int64_t step_end_ns_ = 0;  // of Step
  // Each uses those before it.
  std::unique_ptr<OrderAgreement> order_;
  std::unique_ptr<HostStep> step_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<BlockingTransfers> blocking_;
};

}  // namespace engine::exec

template <>
struct std::default_delete<engine::exec::Executor> {
  void operator()(engine::exec::Executor* executor) const {
    if (executor->End()) delete executor;
  }
};
