// Ids are the order in which one thread would run a step. Of what comes here:
//
//   [PULL of rows]  forward ...  [micro-batches]  TRANSFER(statistics)
//   backward, [ADD], ACCUMULATE(p), local hooks(p), [PACK(unit)], first TRANSFER(unit)   as complete
//
// A first transfer stands behind the instruction that completes the last gradient of its unit, so
// that a scheduler that goes by ids sends while the backward pass goes on.
#include "core/exec/task_graph.h"

#include <algorithm>
#include <utility>

#include "core/base/hash.h"
#include "core/exec/step.h"
#include "core/exec/task_graph_builder.h"
#include "core/exec/task_graph_tail.h"

namespace engine::exec {
namespace {

// What does not wait for the network: forward and backward instructions, the gradient of each
// parameter as soon as it is complete, and the first transfer of each unit.
class Head {
 public:
  Head(TaskGraphBuilder* tasks, const graph::MemoryPlan& plan) : t_(*tasks), plan_(plan) {
    for (const UnitLayout& unit : t_.layout.units) {
      unit_waits_.push_back(static_cast<int32_t>(unit.spans.size()));
    }
  }

  void Add() {
    AddOpening();
    const auto count = static_cast<int32_t>(t_.program.instructions.size());
    for (int32_t k = 0; k < count; ++k) {
      AddInstruction(k);
      if (k + 1 == t_.program.forward_count) {
        AddMicroBatches();
        AddStatistics();
      }
      for (size_t p = 0; p < t_.layout.parameters.size(); ++p) {
        if (t_.UsersOf(p).back() == k) AddLocalPipeline(static_cast<int32_t>(p));
      }
    }
  }

 private:
  void AddOpening() {
    if (t_.options.alone) return;
    for (size_t u = 0; u < t_.layout.units.size(); ++u) {
      const UnitChain& chain = t_.options.chains[u];
      if (!chain.opens_step) continue;
      const auto unit = static_cast<int32_t>(u);
      t_.AddTransfer(TransferData::kParameters, unit, chain.parameters[0]);
      t_.opening.emplace_back(unit, t_.LastId());
    }
  }

  void AddInstruction(int32_t k) {
    const graph::Instruction& instruction = t_.program.instructions[k];
    const graph::Node& node = t_.graph.nodes[instruction.node];
    const TaskKind kind = instruction.kind == graph::InstructionKind::kForward ? TaskKind::kForward
                          : instruction.kind == graph::InstructionKind::kBackward
                              ? TaskKind::kBackward
                              : TaskKind::kAccumulate;
    Task& task = t_.Add(kind, std::string(Name(kind)) + " " + node.name);
    task.instruction = k;
    task.opens_step = kind == TaskKind::kForward;
    task.info.priority = node.priority;
    task.gathers = kind != TaskKind::kAccumulate && Gathers(node);
    t_.task_of_instruction.push_back(static_cast<int32_t>(task.info.id));
    for (const int32_t earlier : plan_.depends_on[k]) t_.After(t_.task_of_instruction[earlier]);
    if (micro_batches_ != graph::kNone && FollowsForwardOnly(k)) t_.After(micro_batches_);
    if (task.gathers) AfterLastGather(k);
    if (kind == TaskKind::kForward) AfterOpening(k);
  }

  bool Gathers(const graph::Node& node) const {
    return t_.options.world_size > 1 && node.signature.uses_replicas != 0;
  }

  bool FollowsForwardOnly(int32_t k) const {
    const std::vector<int32_t>& earlier = plan_.depends_on[k];
    return std::all_of(earlier.begin(), earlier.end(),
                       [&](int32_t other) { return other < t_.program.forward_count; });
  }

  // All ranks run what gathers in one order (core/exec/replicas.h).
  void AfterLastGather(int32_t k) {
    const std::vector<int32_t>& known = plan_.depends_on[k];
    const bool waits = std::find(known.begin(), known.end(), last_gather_) != known.end();
    if (last_gather_ != graph::kNone && !waits) t_.After(t_.task_of_instruction[last_gather_]);
    last_gather_ = k;
  }

  void AfterOpening(int32_t k) {
    for (const auto& [unit, transfer] : t_.opening) {
      const std::vector<int32_t>& users = t_.UsersOf(t_.layout.units[unit].spans[0].parameter);
      if (std::find(users.begin(), users.end(), k) != users.end()) t_.After(transfer);
    }
  }

  // It overwrites what any forward task has left, and what any backward task reads.
  void AddMicroBatches() {
    const std::string count = std::to_string(t_.options.micro_batches);
    if (t_.options.micro_batches == 1) return;
    Task& task = t_.Add(TaskKind::kForward, t_.options.micro_batches == 2
                                                ? "micro-batch 2"
                                                : std::string("micro-batches 2 to ").append(count));
    micro_batches_ = t_.LastId();
    for (size_t p = 0; p < t_.layout.parameters.size(); ++p) {
      task.reads.push_back(static_cast<int32_t>(p));
    }
    for (const graph::Node& node : t_.graph.nodes) task.gathers |= Gathers(node);
    for (const int32_t earlier : t_.task_of_instruction) {
      if (t_.result.tasks[earlier].successors.empty()) t_.After(earlier);
    }
  }

  void AddStatistics() {
    const int32_t maker = micro_batches_ != graph::kNone ? micro_batches_ : LossTask();
    t_.result.tasks[maker].makes_statistics = true;
    if (t_.options.alone || t_.options.asynchronous) return;
    Task& task = t_.AddTransfer(TransferData::kStatistics, graph::kNone,
                                {TransferKind::kAllReduce, "transfer statistics"});
    task.info.size_bytes = sizeof(StepStatistics);
    t_.result.statistics = task.info.id;
    t_.After(maker);
  }

  int32_t LossTask() const {
    const graph::NodeId node = t_.graph.values[t_.graph.loss].producer;
    int32_t k = 0;
    while (t_.program.instructions[k].node != node) ++k;
    return t_.task_of_instruction[k];
  }

  void AddLocalPipeline(int32_t position) {
    const TaskSpan whole{.parameter = position, .count = t_.CountOf(position)};
    t_.Add(TaskKind::kAccumulate, "accumulate " + t_.NameOf(position)).spans = {whole};
    for (const int32_t user : t_.UsersOf(position)) t_.After(t_.task_of_instruction[user]);
    int32_t last = t_.LastId();
    for (size_t h = 0; h < t_.options.hooks.size(); ++h) {
      if (t_.options.hooks[h].stage != HookStage::kLocal) continue;
      t_.AddHook(h, HookWork::kApply, t_.NameOf(position)).spans = {whole};
      t_.After(last);
      last = t_.LastId();
    }
    t_.sent[position] = last;
    if (t_.options.alone) return;
    for (const int32_t unit : t_.layout.units_of[position]) {
      if (--unit_waits_[unit] == 0) AddFirstStage(unit);
    }
  }

  void AddFirstStage(int32_t unit) {
    std::vector<int32_t> waits;
    for (const UnitSpan& span : t_.layout.units[unit].spans) {
      waits.push_back(t_.sent[span.parameter]);
    }
    if (t_.options.wire != nullptr) {
      t_.AddWireHook(HookWork::kPack, unit).spans = t_.SpansOf(unit, /*own_part=*/false);
      for (const int32_t earlier : waits) t_.After(earlier);
      waits = {t_.LastId()};
    }
    t_.AddTransfer(TransferData::kGradients, unit, t_.options.chains[unit].gradients[0]);
    t_.unit_task[unit] = t_.LastId();
    for (const int32_t earlier : waits) t_.After(earlier);
  }

  TaskGraphBuilder& t_;
  const graph::MemoryPlan& plan_;
  std::vector<int32_t> unit_waits_;     // per unit: spans not placed yet
  int32_t last_gather_ = graph::kNone;  // instruction of the last task that gathers
  int32_t micro_batches_ = graph::kNone;
};

uint64_t DigestOf(const std::vector<Task>& tasks) {
  uint64_t digest = 0;
  for (const Task& task : tasks) {
    const TaskInfo& info = task.info;
    digest = base::HashOf(task.name, digest);
    digest = base::HashOf({static_cast<uint64_t>(info.kind), info.unit, info.size_bytes,
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
                           .unit_task = std::vector<int32_t>(layout.units.size(), graph::kNone),
                           .sent = std::vector<int32_t>(layout.parameters.size(), graph::kNone)};
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
