// Ids are the order in which one thread would run a step. Of what comes here:
//
//   [PULL of rows]  forward ...  [micro-batches]  TRANSFER(statistics)
//   backward, [ADD], ACCUMULATE(p), local hooks(p), [PACK(bucket)], first TRANSFER(bucket)   as complete
//
// A first transfer stands behind the instruction that completes the last gradient of its bucket, so
// that a scheduler that goes by ids sends while the backward pass goes on.
#include "core/exec/task_graph.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/hash.h"
#include "core/exec/step.h"
#include "core/exec/task_graph_builder.h"
#include "core/exec/wire.h"

namespace engine::exec {
namespace {

// What does not wait for the network: forward and backward instructions, the gradient of each
// parameter as soon as it is complete, and the first transfer of each bucket.
class Head {
 public:
  Head(TaskGraphBuilder* tasks, const graph::MemoryPlan& plan) : t_(*tasks), plan_(plan) {
    for (const BucketLayout& bucket : t_.layout.buckets)
      bucket_waits_.push_back(bucket.spans.size());
  }

  void Add() {
    if (!t_.options.alone) AddOpening();
    const auto count = static_cast<int32_t>(t_.program.instructions.size());
    for (int32_t k = 0; k < count; ++k) {
      AddInstruction(k);
      if (k + 1 == t_.program.forward_count) {
        if (t_.options.run.micro_batches > 1) AddMicroBatches();
        AddStatistics();
      }
      for (const int32_t position : t_.all) {
        if (t_.UsersOf(position).back() == k) AddLocalPipeline(position);
      }
    }
  }

 private:
  void AddOpening() {
    for (size_t u = 0; u < t_.layout.buckets.size(); ++u) {
      const BucketChain& chain = t_.options.chains[u];
      if (!chain.opens_step) continue;
      t_.AddTransfer(TransferData::kParameters, static_cast<int32_t>(u), chain.parameters[0]);
      t_.pull[t_.layout.buckets[u].spans[0].parameter] = t_.LastId();
    }
  }

  void AddInstruction(int32_t k) {
    const graph::Instruction& instruction = t_.program.instructions[k];
    const graph::Node& node = t_.graph.nodes[instruction.node];
    const bool again = instruction.kind == graph::InstructionKind::kRecompute;
    const TaskKind kind = instruction.kind == graph::InstructionKind::kForward ? TaskKind::kForward
                          : instruction.kind == graph::InstructionKind::kAdd ? TaskKind::kAccumulate
                                                                             : TaskKind::kBackward;
    Task& task = t_.Add(kind, (again ? "recompute " : std::string(Name(kind)) + " ") + node.name);
    task.instruction = k;
    task.opens_step = kind == TaskKind::kForward;
    task.info.priority = node.priority;
    t_.task_of_instruction.push_back(t_.LastId());
    const std::vector<int32_t>& known = plan_.depends_on[k];
    for (const int32_t earlier : known) t_.After(t_.task_of_instruction[earlier]);
    const bool follows_forward_only =
        std::ranges::all_of(known, [&](int32_t other) { return other < t_.program.forward_count; });
    if (micro_batches_ != graph::kNone && follows_forward_only) t_.After(micro_batches_);
    // All ranks run what gathers in one order (core/exec/replicas.h).
    const bool gathers = kind != TaskKind::kAccumulate && node.signature.uses_replicas != 0;
    if (gathers && t_.options.run.rank.world_size > 1) {
      if (last_gather_ != graph::kNone) t_.After(last_gather_);
      last_gather_ = t_.LastId();
    }
    if (kind == TaskKind::kForward) AfterPulls(k);
  }

  void AfterPulls(int32_t k) {
    for (const int32_t position : t_.all) {
      const bool reads = std::ranges::count(t_.UsersOf(position), k) > 0;
      if (reads && t_.pull[position] != graph::kNone) t_.After(t_.pull[position]);
    }
  }

  // It overwrites what any forward task has left, and what any backward task reads.
  void AddMicroBatches() {
    const int64_t last = t_.options.run.micro_batches;
    Task& task =
        t_.Add(TaskKind::kForward,
               last == 2 ? "micro-batch 2"
                         : std::string("micro-batches 2 to ").append(std::to_string(last)));
    micro_batches_ = t_.LastId();
    task.reads = t_.all;
    for (const int32_t earlier : t_.task_of_instruction) {
      if (t_.result.tasks[earlier].successors.empty()) t_.After(earlier);
    }
  }

  void AddStatistics() {
    // Forward instructions are in the order of the nodes.
    const graph::NodeId loss = t_.graph.values[t_.graph.loss].producer;
    const int32_t maker =
        micro_batches_ != graph::kNone ? micro_batches_ : t_.task_of_instruction[loss];
    t_.result.tasks[maker].makes_statistics = true;
    if (t_.options.alone || t_.options.asynchronous) return;
    Task& task = t_.AddTransfer(TransferData::kStatistics, graph::kNone,
                                {TransferKind::kAllReduce, "transfer statistics"});
    task.info.size_bytes = sizeof(StepStatistics);
    t_.result.statistics = task.info.id;
    t_.After(maker);
  }

  void AddLocalPipeline(int32_t position) {
    const std::string& name = t_.ParameterAt(position).name;
    std::vector<int32_t>& made_by = t_.sent[position];
    for (const int32_t user : t_.UsersOf(position)) {
      if (user >= t_.program.forward_count) made_by.push_back(t_.task_of_instruction[user]);
    }
    for (size_t h = 0; h < t_.options.hooks.size(); ++h) {
      if (t_.options.hooks[h].stage != HookStage::kLocal) continue;
      t_.AddHook(h, HookWork::kApply, name).spans = {t_.WholeOf(position)};
      t_.After(std::exchange(made_by, {t_.LastId()}));
    }
    if (t_.options.alone) return;
    for (const int32_t bucket : t_.layout.buckets_of[position]) {
      if (--bucket_waits_[bucket] == 0) AddFirstStage(bucket);
    }
  }

  void AddFirstStage(int32_t bucket) {
    std::vector<int32_t> waits;
    for (const int32_t position : t_.ParametersOf(bucket)) {
      waits.insert(waits.end(), t_.sent[position].begin(), t_.sent[position].end());
    }
    if (t_.options.wire != nullptr) {
      Task& pack = t_.AddWireHook(HookWork::kPack, bucket);
      pack.spans = t_.SpansOf(bucket, /*own_part=*/false);
      pack.tail = t_.options.wire->traits.state_count > 0;
      if (pack.tail) waits.push_back(static_cast<int32_t>(t_.result.statistics));
      t_.After(waits);
      waits = {t_.LastId()};
    }
    t_.AddTransfer(TransferData::kGradients, bucket, t_.options.chains[bucket].gradients[0]);
    t_.bucket_task[bucket] = t_.LastId();
    t_.After(waits);
  }

  TaskGraphBuilder& t_;
  const graph::MemoryPlan& plan_;
  std::vector<size_t> bucket_waits_;      // per bucket: spans not placed yet
  int32_t last_gather_ = graph::kNone;    // the last task that gathers
  int32_t micro_batches_ = graph::kNone;  // the task of all but the first
};

uint64_t DigestOf(const std::vector<Task>& tasks) {
  uint64_t digest = 0;
  for (const Task& task : tasks) {
    const TaskInfo& info = task.info;
    digest = base::HashOf(task.name, digest);
    digest = base::HashOf({static_cast<uint64_t>(info.kind), info.bucket, info.size_bytes,
                           static_cast<uint64_t>(info.transfer), static_cast<uint64_t>(task.data)},
                          digest);
  }
  return digest;
}

}  // namespace

TaskGraph BuildTaskGraph(const graph::Graph& graph, const graph::Program& program,
                         const graph::MemoryPlan& plan, const FlatLayout& layout,
                         const TaskGraphOptions& options) {
  TaskGraphBuilder builder{.graph = graph,
                           .program = program,
                           .layout = layout,
                           .options = options,
                           .all = std::vector<int32_t>(layout.parameters.size()),
                           .bucket_task = std::vector<int32_t>(layout.buckets.size(), graph::kNone),
                           .sent = std::vector<std::vector<int32_t>>(layout.parameters.size()),
                           .pull = std::vector<int32_t>(layout.parameters.size(), graph::kNone)};
  std::iota(builder.all.begin(), builder.all.end(), 0);
  Head(&builder, plan).Add();
  AddTail(&builder);
  TaskGraph& result = builder.result;
  for (Task& task : result.tasks) {
    task.info.name = task.name;
    result.infos.push_back(task.info);
  }
  result.digest = DigestOf(result.tasks);
  return std::move(result);
}

}  // namespace engine::exec
