// In which order work and transfers happen.
//
// A scheduler is a deterministic state machine: events in, actions out. It holds no thread, clock,
// socket or tensor, so the same library also runs in a simulator. It decides order only: the
// executor tracks dependencies and the versions of parameters itself and offers a task only when it
// is ready, so a wrong scheduler is slow or reported as stalled, never wrong.
//
// There is no barrier between steps: while transfers and updates of step t are under way, forward
// tasks of step t+1 become ready one by one, each as soon as the parameters it reads are updated.
// A task of step t+1 becomes ready only after the same task of step t is done, so a task id names
// one thing at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/communicator.h"
#include "engine/optimizer.h"
#include "engine/status.h"

namespace engine {

// A lane runs one kind of work. kCompute runs one task at a time and is asked when it is free; kIo
// starts transfers, which end on their own, and is asked whenever something has happened.
enum class Lane : int32_t { kCompute = 0, kIo = 1 };

enum class TaskKind : int32_t {
  kForward = 0,
  kBackward = 1,
  kAccumulate = 2,  // adds up gradients of a value that several ops read
  kHook = 3,        // one hook on one or several gradients (or the global part of a hook)
  kTransfer = 4,    // one bucket
  kUpdate = 5,      // of a bucket, of a parameter, or of all
};

constexpr const char* Name(TaskKind kind) noexcept {
  constexpr const char* kNames[] = {"forward", "backward", "accumulate",
                                    "hook",    "transfer", "update"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

// Ids are dense and the same on all ranks and in all steps.
struct TaskInfo {
  uint32_t id = 0;
  TaskKind kind = TaskKind::kForward;
  Lane lane = Lane::kCompute;
  int32_t priority = 0;   // larger first; from the model, 0 unless the user set it on a layer
  uint32_t sequence = 0;  // position in the order in which a single thread would run the step
  uint32_t bucket =
      UINT32_MAX;           // kTransfer: which bucket of the plan; UINT32_MAX = a few numbers (the
                            // statistics of the step, sums of hooks) that all updates wait for
  uint64_t size_bytes = 0;  // kTransfer: payload of one rank
  TransferKind transfer = TransferKind::kAllReduce;  // kTransfer
  uint32_t needed_by = UINT32_MAX;  // what comes after the end of backward: sequence of the first
                                    // forward task of the next step that reads one of its
                                    // parameters; else UINT32_MAX
  TextView name = {};               // valid while the scheduler lives
};
ENGINE_LAYOUT(TaskInfo, id, kind, lane, priority, sequence, bucket, size_bytes, transfer, needed_by,
              name);

struct ParameterInfo {
  uint32_t id = 0;         // its position in ModelInfo::parameters
  uint32_t first_use = 0;  // sequence of the first forward task that reads it
  uint32_t ready = 0;      // position in the step where its gradient becomes complete
  uint32_t alone = 0;  // 1: the parameter must be a bucket of its own, and whole (only some of its
                       // rows travel in a step, or it keeps parameters of two types apart)
  int64_t count = 0;   // float32 elements
  TextView name = {};  // valid during Plan
};
ENGINE_LAYOUT(ParameterInfo, id, first_use, ready, alone, count, name);

// Everything a plan may depend on; the same on all ranks.
struct ModelInfo {
  uint64_t struct_size = sizeof(ModelInfo);
  Array<const ParameterInfo> parameters =
      {};  // trainable ones, in the order their gradients become ready; if sharded, those
           // that are gathered in fewer bytes come before all others
  CommunicatorTraits communicator = {};
  UpdateGate gate = UpdateGate::kSpan;  // of optimizer and hooks together
  int32_t world_size = 1;
  int64_t slice_multiple =
      1;                 // elements: where a bucket ends inside of a parameter, the elements of
                         // that parameter so far must be a multiple of this
  uint32_t sharded = 0;  // 1: every bucket is reduce-scattered, each rank updates its part of the
                         // parameters, and they are gathered, whatever BucketStages says
  uint32_t served = 0;   // 1: every bucket is pushed to servers, which update it, and pulled from
                         // them, whatever BucketStages says
  uint32_t accelerator = 0;  // 1: gradients lie in the memory of an accelerator (accelerator.h):
                             // links between such are fast, so large buckets cost less
};
ENGINE_LAYOUT(ModelInfo, struct_size, parameters, communicator, gate, world_size, slice_multiple,
              sharded, served, accelerator);

// A part of one parameter's gradient.
struct BucketSpan {
  uint32_t parameter = 0;  // ParameterInfo::id
  uint32_t reserved = 0;   // 0
  int64_t offset = 0;      // elements
  int64_t count = 0;
};
ENGINE_LAYOUT(BucketSpan, parameter, reserved, offset, count);

// How the sum of a bucket's gradients comes about.
enum class BucketStages : int32_t {
  kAllReduce = 0,
  kReduceScatterAllGather = 1,  // two transfers; the second may be held back until it is needed
};
// Receives the buckets of a plan, in the order in which their gradients shall lie in memory. The
// spans of a bucket must be contiguous in that order, and together the buckets must cover every
// parameter exactly once: a model without trainable ones has none. The core checks this.
ENGINE_INTERFACE(PlanSink, Interface, "engine.plan_sink.draft/1", AddBucket);
class PlanSinkBase : public Implements<PlanSink> {
 public:
  // The next bucket. `priority` is handed to the communicator; larger is more urgent. [setup]
  virtual void AddBucket(Array<const BucketSpan> spans, int32_t priority,
                         BucketStages stages) noexcept = 0;

 protected:
  ~PlanSinkBase() = default;
};

enum class EventKind : int32_t {
  kStepBegin = 0,    // a batch is there; forward tasks of `step` become ready from now on
  kTaskReady = 1,    // all it depends on is done; of several at once, by ascending id
  kTaskStarted = 2,  // a ready transfer was started because rank 0 said so
                     // (TransferOrder::kLeader): take it as if Next had answered it
  kTaskDone = 3,
  kBackwardEnd = 4,  // every forward, backward, accumulate and local hook task of the step is done
  kFlush = 5,  // before an evaluation, a checkpoint or the end: no forward task comes until all
               // that is pending is done, so hold nothing back for one
  kError = 6,  // the run is given up: forget what is pending
};

struct SchedulerEvent {
  uint64_t struct_size = sizeof(SchedulerEvent);
  EventKind kind = EventKind::kStepBegin;
  uint32_t task = 0;  // kTaskReady, kTaskStarted, kTaskDone
  uint64_t step = 0;  // of the task: two steps may be under way
};
ENGINE_LAYOUT(SchedulerEvent, struct_size, kind, task, step);

enum class ActionKind : int32_t {
  kRun = 0,   // run (kCompute) or start (kIo) the task: it must be ready and not have been started
  kHold = 1,  // nothing now; ask again after the next event
};

// Returned in a register: it does not grow.
struct Action {
  ActionKind kind = ActionKind::kHold;
  uint32_t task = 0;  // kRun: one of the lane that was asked
};
ENGINE_LAYOUT(Action, kind, task);

// Collectives deadlock when ranks start them in different orders, or spend the credit of a
// scheduler on different ones: the core makes all ranks start transfers in one order. kStatic: the
// order of transfers follows from the plan alone, whenever they end; kLeader: ranks but 0 take
// kTaskStarted as if Next had answered it.
enum class TransferOrder : int32_t {
  kStatic = 0,  // needs no messages
  kLeader = 1,  // depends on timing: rank 0's scheduler decides; the others are not asked on kIo
                // but follow
};

struct SchedulerTraits {
  uint64_t struct_size = sizeof(SchedulerTraits);
  TransferOrder order = TransferOrder::kStatic;
  uint32_t reserved = 0;  // 0
};
ENGINE_LAYOUT(SchedulerTraits, struct_size, order, reserved);

// Calls never overlap, but come from different threads. In every step each task is run once, when
// it is ready; while nothing runs, a lane with a ready task is not held. Steps with the same events
// should have the same order. On and Next never allocate after the first step. A pull waits for the
// pushes of all ranks, so a pull that is under way holds back no push.
ENGINE_INTERFACE(Scheduler, Object, "engine.scheduler.draft/1", traits, Plan, Begin, On, Next);
class SchedulerBase : public Implements<Scheduler> {
 public:
  virtual SchedulerTraits traits() const noexcept = 0;  // the same on all ranks [setup]

  // Decides what travels together. Called once, before Begin. Of a run of one rank, where nothing
  // travels, the core uses the plan for the order of gradients in memory only. [setup]
  virtual Status Plan(const ModelInfo& model, PlanSink& sink) noexcept = 0;

  // The tasks of one step, by id. Steps repeat it. [setup]
  virtual Status Begin(Array<const TaskInfo> tasks) noexcept = 0;

  // What has happened; returns soon, since the executor waits for it. [any-thread]
  virtual void On(const SchedulerEvent& event) noexcept = 0;

  // What `lane` shall do next. On kIo the caller asks again until it gets kHold, after every event
  // or group of events; on kCompute when the lane is free. [any-thread]
  virtual Action Next(Lane lane) noexcept = 0;
};

}  // namespace engine
