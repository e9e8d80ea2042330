// The tasks of one training step and what each waits for.
#pragma once

#include <string>
#include <vector>

#include "core/exec/executor_options.h"
#include "core/exec/layout.h"
#include "core/graph/memory_plan.h"
#include "engine/gradient_hook.h"

namespace engine::exec {

struct WireLayout;  // core/exec/wire.h

constexpr uint32_t kNoBucket = UINT32_MAX;
constexpr size_t kPackScale = 0;  // the scale that PACK tasks read: hooks do not change it

// One transfer of a bucket; `verb` begins the name of its task.
struct TransferStage {
  TransferKind kind = TransferKind::kAllReduce;
  const char* verb = "";
};

// What a bucket goes through: transfers of its gradients, the first one as soon as they are complete
// on this rank; hooks and updates, unless servers make them; transfers of its parameters.
struct BucketChain {
  std::vector<TransferStage> gradients;
  std::vector<TransferStage> parameters;  // at most one
  bool opens_step = false;                // that one begins the next step: what it brings depends
                                          // on the batch
};

// What a kHook task does.
enum class HookWork { kApply, kObserve, kAllObserved, kPack, kUnpack };

// A part of one parameter that a task works on, in elements.
struct TaskSpan {
  int32_t parameter = graph::kNone;  // position in FlatLayout::parameters
  int32_t bucket = graph::kNone;     // that it lies in; kNone: perhaps in several
  int64_t offset = 0;                // elements of the parameter
  int64_t count = 0;
};

// What a kTransfer task moves.
enum class TransferData { kStatistics, kObserved, kGradients, kParameters };

struct Task {
  TaskInfo info;  // info.name points to `name`
  std::string name;
  int32_t instruction = graph::kNone;  // kForward but for micro-batches, kBackward, kAccumulate
  std::vector<TaskSpan> spans;         // kHook, kUpdate; of a sharded run: this rank's part
  std::vector<int32_t> reads;      // kForward: positions in FlatLayout::parameters, the versions of
                                   // which must be those of the step
  std::vector<int32_t> completes;  // parameters of which it is among the last tasks of a step
  int32_t hook = graph::kNone;     // kHook, kTransfer of kObserved: index in the chain
  HookWork hook_work = HookWork::kApply;
  int32_t first_scale = 0;  // kHook, kUpdate of the tail: the scale of its first span; those of the
                            // others follow; tasks of the same spans share theirs
  int32_t blocks = 1;       // kHook of kUnpack: from how many ranks each span comes
  TransferData data = TransferData::kStatistics;  // kTransfer
  bool makes_statistics = false;                  // kForward: leaves the statistics of this rank
  bool opens_step = false;                // kForward, and pulls of rows: ready when a step begins
  bool tail = false;                      // comes after the end of backward: transfers of gradients
                                          // and parameters, reduced hooks, updates
  int32_t dependency_count = 0;           // on tasks of the same step
  int32_t carried_count = 0;              // on tasks of the step before
  std::vector<uint32_t> successors;       // of the same step
  std::vector<uint32_t> next_successors;  // of the next step
};

// Everything a step consists of, in the order in which one thread would run it (so ids are sequence
// numbers):
//
//   forward ... TRANSFER(statistics), backward, [ADD], ACCUMULATE(p), local hooks(p),
//   TRANSFER(bucket), ..., reduced hooks, UPDATE, [TRANSFER(bucket) of parameters]
//
// With micro-batches the forward tasks are those of the first one and the backward tasks those of
// the last one. Between them stands one task of kind kForward without an instruction, which
// computes the rest of both; the transfer of the statistics waits for it.
//
// With a hook of HookStage::kWire there is a PACK(bucket) before the first transfer of a bucket's
// gradients and an UNPACK(bucket) after the last one. If its format has states, each PACK waits for
// the transfer of the statistics, as states are in the unit of the mean; so it is of the tail, since a
// scheduler may hold all transfers until backward has ended.
//
// With one rank nothing travels: there are no transfers, and all hooks and updates wait for is a
// complete gradient.
//
// Reduced hooks and updates work on one bucket if the optimizer's gate and the hook's scope allow it,
// else on one parameter; or on everything at once where no forward task could begin sooner
// otherwise (MakeGroups). A global hook stands between: OBSERVE of everything, [ALL_REDUCE of what
// was observed, when sharded], one task when all is observed, then APPLY. The forward tasks of the
// next step wait for the last task of each parameter that they read. Tasks whose ops gather from
// all ranks (OpSignature::uses_replicas) run in the order of the program: each waits for the one
// before it.
struct TaskGraph {
  std::vector<Task> tasks;
  std::vector<TaskInfo> infos;       // of all tasks, for Scheduler::Begin
  uint32_t statistics = UINT32_MAX;  // the transfer of the statistics; UINT32_MAX: those of this
                                     // rank are those of the step
  int32_t scale_count = 1;           // of all Task::first_scale, behind kPackScale
  uint64_t digest = 0;               // of all of it that must be the same on all ranks
};

struct TaskGraphOptions {
  // Borrowed. `run.rank.rank` tells which part is this rank's; nothing else depends on it. With
  // micro-batches one task computes all but the first forward and the last backward pass.
  const ExecutorOptions& run;
  std::vector<HookTraits> hooks;
  UpdateGate gate = UpdateGate::kSpan;  // of the optimizer
  std::vector<BucketChain> chains;      // by bucket; not used when `alone`
  bool updates = true;                  // on ranks; else servers make them
  bool own_part = false;                // each rank updates its part of a bucket
  bool alone = false;                   // nothing travels
  bool accelerator = false;             // what compute tasks do is queued on a device
  bool updates_together = false;        // they wait for all gradients of their step
  bool asynchronous = false;            // no transfer waits for other ranks: no statistics of them
  const WireLayout* wire = nullptr;     // null: gradients travel as they are
};

TaskGraph BuildTaskGraph(const graph::Graph& graph, const graph::Program& program,
                         const graph::MemoryPlan& plan, const FlatLayout& layout,
                         const TaskGraphOptions& options);

}  // namespace engine::exec
