// One rank's training: plans the step, runs it, and does what comes between steps. What is in it:
//
//   StepRunner       threads, lock, failure        StepLoop        what is ready, and the scheduler
//   HostStep         what tasks do                 UpdateStrategy  how gradients become parameters
//   OrderAgreement   one order on all ranks        Wire            gradients in another form
//   BlockingTransfers  outside of steps            TransferLane    transfers under way
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exec/blocking_transfers.h"
#include "core/exec/executor_options.h"
#include "core/exec/host_step.h"
#include "core/exec/order_agreement.h"
#include "core/exec/replicas.h"
#include "core/exec/served_updates.h"
#include "core/exec/step_runner.h"
#include "core/exec/wire.h"
#include "core/plugin/plugin_set.h"
#include "core/trace/timeline.h"

namespace engine::exec {

// Whether training `graph` on several ranks needs ExecutorOptions::replicas.
bool UsesReplicas(const graph::Graph& graph);

// Used from one thread, [compute-lane].
class Executor {
 public:
  // Plans the step. `plugins` and `store` are borrowed; `store` carries what ranks must tell each
  // other about the order of transfers and may be null in a world of one. kPlugin when the
  // scheduler's plan is unusable, kConfig when plugins do not go together.
  static Result<std::unique_ptr<Executor>> Create(graph::Graph graph, plugin::PluginSet& plugins,
                                                  const graph::OpFactory& factory,
                                                  base::Store* store,
                                                  const ExecutorOptions& options);

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

  // Waits until every parameter is updated, on an accelerator by the device. Needed before anything
  // but Step looks at parameters, optimizer states or the communicator; does nothing when it has
  // been done. Collective when updates are sharded: every rank gets all parameters, of which it may
  // have had but the rounded copies.
  Status Flush();
  bool flushed() const;
  // One transfer outside of a step, waited for: for evaluation. `count` elements, in place, summed
  // over ranks. After Flush.
  Status AllReduce(DType dtype, void* data, int64_t count) {
    return step_->AllReduce(*blocking_, dtype, data, count);
  }

  // Whether servers update the parameters. The three below only then; see ServedUpdates.
  bool served() const { return updates_->served() != nullptr; }
  // Waits for all ranks that are there, at most `timeout_ms`. After Flush.
  Status Meet(int64_t timeout_ms) { return updates_->served()->Meet(*blocking_, timeout_ms); }
  Result<int64_t> NextStep() { return updates_->served()->NextStep(); }
  Status SetServedState(int32_t index, std::span<const float> arena) {
    return updates_->served()->SetState(index, arena);
  }
  // Whether ranks do not wait for each other in a step: statistics are those of this rank.
  bool asynchronous() const { return updates_->asynchronous(); }

  ModelMemory& memory() { return *memory_; }
  const ModelMemory& memory() const { return *memory_; }
  const TaskGraph& tasks() const { return tasks_; }
  // What happened so far; after Flush.
  trace::RankTimeline Timeline() const;

  // Parameters that are trainable but that the loss does not reach: they are neither sent nor
  // updated.
  const std::vector<std::string>& unreached_parameters() const { return unreached_; }
  const OptimizerTraits& optimizer_traits() const { return updates_->optimizer(); }
  const OptimizerStates& optimizer_states() const { return updates_->states(); }
  // Brings optimizer states that are sharded or at servers together on rank 0 for
  // optimizer_state(). Collective when they are sharded; after Flush.
  Status CollectOptimizerStates();
  // State `index` of the optimizer for graph parameter `parameter`; null data for one that is not
  // trained, and for states that are elsewhere unless they are collected.
  TensorView optimizer_state(int32_t parameter, int32_t index) const {
    return updates_->state(parameter, index);
  }

  // Null: gradients travel as they are.
  const Wire* wire() const { return wire_.get(); }
  const std::string& wire_hook_name() const { return options_.hook_names[wire_->layout().hook]; }
  // The same for the states of that hook on all ranks.
  Status CollectWireStates();
  TensorView wire_state(int32_t parameter, int32_t rank, int32_t index) const {
    return wire_->state_of(parameter, rank, index);
  }
  // Frees what was collected.
  void DropCollectedStates();

 private:
  Executor(plugin::PluginSet& plugins, base::Store* store, const ExecutorOptions& options);
  Status Plan(graph::Graph graph, const graph::OpFactory& factory);
  Result<UpdateGate> CheckHooks() const;
  Status MakeMemory(graph::Graph graph, const graph::OpFactory& factory);
  void MakeTasks();
  Status CheckTransfers() const;
  Status MakeReplicas();
  Status MakeStep();
  SharedMemory* MemoryOfTransfers() const;

  plugin::PluginSet& plugins_;
  base::Store* const store_;
  const ExecutorOptions options_;
  const bool on_accelerator_;
  std::unique_ptr<UpdateStrategy> updates_;
  WireChoice wire_choice_;
  std::unique_ptr<ModelMemory> memory_;
  std::unique_ptr<CommunicatorReplicas> replicas_;  // null: no op asks for them, or one rank
  std::unique_ptr<Wire> wire_;                      // null: gradients travel as they are
  TaskGraph tasks_;
  std::vector<std::string> unreached_;
  bool buffers_differ_ = false;  // perhaps, between ranks
  int64_t step_end_ns_ = 0;      // of Step
  // Each uses those before it.
  std::unique_ptr<OrderAgreement> order_;
  std::unique_ptr<HostStep> step_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<BlockingTransfers> blocking_;
};

}  // namespace engine::exec
