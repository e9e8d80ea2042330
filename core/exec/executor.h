// Runs training steps: keeps track of what is ready, asks the scheduler what comes next, runs it.
//
// Two kinds of threads are at work. The thread of the rank calls Step and runs compute tasks. When
// a transfer has ended, the thread of the communicator that says so asks the scheduler for the next
// ones and submits them (Pump), so that the network does not wait for the end of a compute task.
// Everything that both touch is guarded by one mutex; no task runs and no transfer is submitted
// under it. On an accelerator the thread of the rank does all of it (executor_device.cc).
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/exec/device_order.h"
#include "core/exec/device_statistics.h"
#include "core/exec/model_memory.h"
#include "core/exec/optimizer_states.h"
#include "core/exec/order.h"
#include "core/exec/replicas.h"
#include "core/exec/step_state.h"
#include "core/exec/task_graph.h"
#include "core/exec/transfer_lane.h"
#include "core/exec/wire.h"
#include "core/plugin/plugin_set.h"
#include "core/trace/timeline.h"
#include "engine/ext/accelerator.h"
#include "engine/ext/parameter_server.h"
#include "engine/ext/shared_memory.h"

namespace engine {

struct StepInput {
  const void* input = nullptr;
  const void* target = nullptr;
  std::span<const void* const> others = {};  // of Graph::others, in their order
  int64_t samples = 0;       // at most as many as the graph's times micro_batches
  int64_t first_sample = 0;  // position of the first of them among those of all ranks
  int64_t all_samples = 0;   // of all ranks; 0: as many on each as here
  uint64_t step = 1;         // from 1
  float learning_rate = 0;
  bool stop = false;  // this rank was asked to stop
};

struct StepResult {
  // Whose statistics these are: those of the step itself, and on an accelerator of the one before
  // it, or 0 for none. Summed over all ranks.
  uint64_t step = 0;
  StepStatistics statistics;
  double seconds = 0;
  // Of them the compute lane had nothing to do but wait: exposed communication. Nothing on an
  // accelerator, whose lane the host does not see.
  std::optional<double> waited_seconds;
};

struct ExecutorOptions {
  RankInfo rank;
  uint64_t seed = 1;
  int64_t timeout_ms = 30000;  // of a transfer
  // Of an accelerator, to come to what was queued: it may have two steps before it, which take as
  // long as they take, so this only ends a run whose device hangs.
  int64_t device_timeout_ms = 10 * 60 * 1000;
  bool shard_optimizer = false;
  // When servers update: rows of tables (Parameter::row_elements) that a batch does not read are
  // neither pushed nor pulled.
  bool sparse_pull = false;
  // Parts in which a rank computes its samples of a step, one after the other; at least 1. The
  // graph is one for the samples of a part.
  int64_t micro_batches = 1;
  // Gradients are computed, seen by local hooks, and sent as this many times themselves; what comes
  // after is told by the scale of each.
  float loss_scale = 1;
  // With one rank nothing travels, so transfers and a hook of HookStage::kWire are left out, but
  // for this: then a step has the tasks of one rank of several, which tells how long they take.
  bool sends_alone = false;
  // For ops that see all ranks while they run (UsesReplicas), in a world of several: one that
  // nothing else is submitted to, or the one of the run if its transfers need no order. Borrowed.
  Communicator* replicas = nullptr;
  // On an accelerator without micro-batches: the work of a step is recorded once and then replayed
  // (CUDA graphs), for batches of as many samples.
  bool record_steps = false;
  size_t trace_spans = 1 << 16;
  std::string communicator_name, scheduler_name, optimizer_name;
  std::vector<std::string> hook_names;
};

// Whether training `graph` on several ranks needs ExecutorOptions::replicas.
bool UsesReplicas(const Graph& graph);

// One rank's training. Used from one thread.
class Executor {
 public:
  // Plans the step. `plugins` and `store` are borrowed; `store` carries what ranks must tell each
  // other about the order of transfers and may be null in a world of one. kPlugin when the
  // scheduler's plan is unusable, kConfig when plugins do not go together.
  static Result<std::unique_ptr<Executor>> Create(Graph graph, PluginSet& plugins,
                                                  const OpFactory& factory, Store* store,
                                                  const ExecutorOptions& options);
  // Aborts the communicator if transfers are under way.
  ~Executor();

  // Gives every rank the parameters of rank 0, and servers those and the optimizer states that were
  // set. A rank that takes the place of a lost one gets what servers have. [setup]
  Status ShareParameters();

  // Gives every rank the buffers (Parameter::buffer) of rank 0, which may differ where ops keep
  // statistics of their rank alone. For evaluation and checkpoints, after Flush; does nothing when
  // no step was made since. Not where ranks go at their own pace: each keeps its own.
  Status ShareBuffers();

  // Forward and backward of one step. Returns when they are done and the statistics are known;
  // transfers of gradients and updates go on, and the next step begins while they do. On an
  // accelerator it returns when all of it is queued and the statistics of the step before are
  // known. After an error the executor is of no more use. No allocation of its own after the first
  // step.
  Result<StepResult> Step(const StepInput& input);

  // The statistics of the last step if Step did not give them yet (StepResult::step is 0 if it
  // did). After Flush.
  Result<StepResult> Remaining();

  // Ends whatever waits, and what comes later, with `reason`; the first one stays. [any-thread]
  void Abort(const Status& reason);

  // Waits until every parameter is updated, on an accelerator by the device. Needed before anything
  // but Step looks at parameters, optimizer states or the communicator; does nothing when it has
  // been done. Collective when updates are sharded: every rank gets all parameters, of which it may
  // have had but the rounded copies.
  Status Flush();
  bool flushed() const;

  // One transfer outside of a step, waited for: for evaluation. `count` elements, in place, summed
  // over ranks. After Flush.
  Status AllReduce(DType dtype, void* data, int64_t count);
  // When served: waits for all ranks that are there, at most `timeout_ms`; then the parameters are
  // those that servers have. After Flush.
  Status Meet(int64_t timeout_ms);

  // Whether servers update the parameters.
  bool served() const { return client_ != nullptr; }
  // Whether ranks do not wait for each other in a step: statistics are those of this rank.
  bool own_pace() const { return own_pace_; }
  // The step after the last one of which servers have this rank's gradients. When served.
  Result<int64_t> NextStep();

  ModelMemory& memory() { return *memory_; }
  const ModelMemory& memory() const { return *memory_; }
  const TaskGraph& tasks() const { return tasks_; }
  // What happened so far; after Flush.
  RankTimeline Timeline() const;
  // Parameters that are trainable but that the loss does not reach: they are neither sent nor
  // updated.
  const std::vector<std::string>& unreached_parameters() const { return unreached_; }

  OptimizerTraits optimizer_traits() const { return optimizer_traits_; }
  const OptimizerStates& optimizer_states() const { return *states_; }
  // Null: gradients travel as they are.
  const Wire* wire() const { return wire_.get(); }
  const std::string& wire_hook_name() const { return options_.hook_names[wire_hook_]; }
  // Brings the states of that hook on all ranks together on rank 0, for wire_state(). Collective;
  // after Flush. DropCollectedStates frees them.
  Status CollectWireStates();
  // State `index` on `rank` for graph parameter `parameter`, in host memory; null data for one that
  // is not trained, and unless they are collected.
  TensorView wire_state(int32_t parameter, int32_t rank, int32_t index) const;
  // Brings optimizer states that are sharded or at servers together on rank 0 for
  // optimizer_state(). Collective when they are sharded; after Flush.
  Status CollectOptimizerStates();
  // Frees what CollectOptimizerStates has brought together.
  void DropCollectedStates() {
    collected_.clear();
    collected_wire_.clear();
  }
  // State `index` of the optimizer for graph parameter `parameter`; null data for one that is not
  // trained, and for sharded states unless they are collected.
  TensorView optimizer_state(int32_t parameter, int32_t index) const;
  // When served: state `index` of all parameters, in the layout of the arena (trainable_count
  // elements), for ShareParameters to give to the servers. [setup]
  Status SetServedState(int32_t index, std::span<const float> arena);

 private:
  using Lock = std::unique_lock<std::mutex>;

  Executor(PluginSet& plugins, Store* store, const ExecutorOptions& options);

  // executor_plan.cc
  Status Plan(Graph graph, const OpFactory& factory);
  SharedMemory* MemoryOfTransfers() const;
  Status CheckShards(UpdateGate* gate);
  Status PrepareOrder();
  Status PrepareReplicas();

  // executor_wire.cc
  Status CheckWire();
  Status PrepareWire();

  // executor_served.cc
  Status CheckServed(const Graph& graph, const Program& program) const;
  Status RegisterUnits();
  std::vector<ServedSpan> SpansOf(const UnitLayout& unit) const;
  int64_t RowsOf(int32_t unit) const;
  int64_t ServedCount(int32_t unit) const;
  uint64_t KeyOfUnit(int32_t unit) const;
  Status StoreUnits();
  Status StoreArena(int32_t state, const float* arena);
  Status LoadUnits(bool row_tables_only);
  Status CollectServedStates();
  void ChooseRows(const StepInput& input);
  void MakeServedTransfer(const Task& task, Transfer* transfer);
  Status BeginServedStep();
  Status AllocateCollected(int64_t count);

  // executor.cc
  Status RunHead(const StepInput& input, double* waited_seconds);
  Status PrepareStep(const StepInput& input);
  void BeginStep();
  Status Drive(bool (Executor::*done)() const, double* waited_seconds);
  Status RunNext(Lock& lock, const Action& action);
  Status WaitForChange(Lock& lock, double* waited_seconds);
  Status Stalled() const;
  bool HeadDone() const { return state_->backward_done() && statistics_known_; }
  bool TailDone() const { return state_->tail_left() == 0; }
  Status QueueTail(double* waited_seconds);
  Span BeginSpan(uint32_t task) const;
  void Finish(const Span& span);
  void RecordStepSpan(SpanKind kind);

  void Pump(Lock& lock);
  void PumpAside(Lock lock);
  void TakeCompletions();
  Status TakeResult(const Task& task);
  Status TakeStatistics();
  Status TakeParameters(const Task& task);
  Status GatherParameters();
  Status CheckOrderBits(const StepStatistics& statistics) const;
  bool NextTransfer(uint32_t* task);
  bool NextTicket(uint32_t* task);
  void StartTransfer(Lock& lock, uint32_t task);
  void OnTicket(std::string_view text);
  void Fail(Status status);
  void EndGathers(const Status& reason);
  Status GiveUp(Status status);

  // executor_device.cc
  Status PrepareDevice();
  float* ScaleAt(size_t index);
  Stream* StreamOf(const Task& task) const {
    return device_order_ == nullptr ? memory_->stream() : device_order_->StreamOf(task);
  }
  Status BeginDeviceStep();
  Status TakeDeviceStatistics(const Task& task);
  template <typename Wait>
  Status AwaitDevice(uint64_t step, const Wait& wait);
  Status AwaitReport(Status device, uint64_t step);
  Result<StepResult> ReadStatistics(uint64_t step);
  Status KeepStatistics();
  Status AddKeptStatistics();
  Status Update(UpdateCall call, const Parameter& parameter, int64_t offset, size_t scale);
  Status EndUpdates();
  Status AllReduceOnDevice(DType dtype, void* data, int64_t count);
  Status Join() { return device_order_ == nullptr ? Status() : device_order_->Join(); }
  bool CanRecord();
  bool CanReplay() const;
  Status Record(Status driven);
  Status WaitForDevice();
  Status Replay();
  Status Launch();

  // executor_micro.cc
  Status BeginMicroBatch(int64_t index);
  Status RunMicroBatches(const Task& task);
  Status RunInstructions(int32_t begin, int32_t end);

  // executor_tasks.cc
  Transfer MakeTransfer(const Task& task);
  Status RunTask(const Task& task);
  Status Run(const Task& task);
  Status BeginBackward();
  Status RunHook(const Task& task);
  Status RunUpdate(const Task& task);
  Status RunAlone(Transfer transfer, int64_t timeout_ms);
  Status RunAlone(const Transfer& transfer) { return RunAlone(transfer, options_.timeout_ms); }
  // In any order; as one group where the communicator has groups.
  Status RunTogether(std::span<Transfer> transfers);
  void NoteAlone(Transfer* transfer, int64_t timeout_ms);
  Status AwaitAlone(Status submitted, Work* work, int64_t timeout_ms);

  PluginSet& plugins_;
  Store* const store_;
  const ExecutorOptions options_;
  OptimizerTraits optimizer_traits_;
  CommunicatorTraits communicator_traits_;
  std::vector<HookTraits> hook_traits_;
  bool sharded_ = false;
  int32_t wire_hook_ = kNone;          // of the chain
  WireFormat* wire_format_ = nullptr;  // null: gradients travel as they are
  ParameterClient* client_ = nullptr;  // null: ranks update
  bool own_pace_ = false;
  bool has_row_tables_ = false;
  bool leads_ = false, follows_ = false;  // posts tickets, or waits for them
  std::unique_ptr<ModelMemory> memory_;
  std::unique_ptr<CommunicatorReplicas> replicas_;  // null: no op asks for them, or one rank
  std::unique_ptr<OptimizerStates> states_;
  std::unique_ptr<Wire> wire_;           // null: gradients travel as they are
  std::vector<DeviceBuffer> collected_;  // rank 0: whole states, in the layout of the arena
  // Rank 0: by state and rank, in the layout of the arena. Views of them are not const.
  mutable std::vector<std::vector<float>> collected_wire_;
  std::vector<int32_t> rows_[2];  // of the batches of even and odd steps: ascending
  TaskGraph tasks_;
  std::vector<int32_t> first_scale_;  // per task: its first entry in gradient_scale_
  std::vector<std::string> unreached_;

  // Of the thread of the rank.
  StepInput input_;
  CallContext call_context_;  // of the micro-batch at hand
  bool backward_begun_ = false;
  bool buffers_differ_ = false;    // perhaps, between ranks
  bool parameters_stale_ = false;  // of units that are gathered rounded: those of other ranks
  bool rows_stale_ = false;        // rows of tables were not pulled since servers updated them
  uint64_t tail_step_ = 0;         // the step of the updates at hand
  float tail_rate_ = 0;
  int64_t step_begin_ns_ = 0;
  int64_t step_end_ns_ = 0;    // of Step
  int64_t wait_begin_ns_ = 0;  // 0: it was not waiting

  // Written before the tasks that read them become ready.
  std::vector<float> gradient_scale_;  // per span that hooks and updates work on

  // Of an accelerator; see executor_device.cc.
  Accelerator* accelerator_ = nullptr;
  DeviceBuffer device_scales_;                 // gradient_scale_ on the device, and a 1 behind it
  std::unique_ptr<DeviceOrder> device_order_;  // null with one rank: all is on one stream
  DeviceBuffer device_scratch_;                // for few floats
  StepStatistics kept_statistics_;             // of earlier micro-batches, on other devices
  StepScalars now_;                            // of the step at hand
  std::vector<UpdateCall> updates_;            // of one task
  SpanUpdates* span_updates_ = nullptr;        // null: one call per span
  std::unique_ptr<DeviceStatistics> device_statistics_;
  bool stop_asked_[2] = {};    // of even and odd steps, with one rank
  bool device_works_ = false;  // perhaps, since it was last waited for
  bool recording_ = false;
  int64_t most_samples_ = 0, recorded_samples_ = 0;  // of all ranks
  uint64_t steps_run_ = 0;
  int64_t longest_step_ms_ = 0;
  uint32_t statistics_task_ = kNoTask;
  std::unique_ptr<Recording> recorded_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<StepState> state_;  // guarded by mutex_, as all below and calls of the scheduler
  SpanRecorder recorder_;
  OrderLog log_;
  StepStatistics statistics_;  // of the step at hand, once they are known
  bool statistics_known_ = false;
  float own_count_ = -1;         // of targets of this rank, from when statistics are under way
  std::vector<Ticket> tickets_;  // a ring of those not started yet
  size_t ticket_head_ = 0, ticket_count_ = 0;
  bool pumping_ = false, pump_again_ = false;
  uint64_t changes_ = 0;
  uint64_t sequence_ = 0;  // of transfers, over the whole run
  Status failure_;

  uint64_t reported_step_ = 0;  // on an accelerator: whose statistics are known to have arrived

  std::unique_ptr<TransferLane> transfers_;  // last: its callbacks use all of the above
};

}  // namespace engine
