#include "tools/conform/scheduler/step_graph.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "core/exec/served_updates.h"
#include "core/exec/sharded_updates.h"
#include "core/graph/memory_plan.h"

namespace engine::conform {
namespace {

// A layer reads its inputs and its parameters, all of which have gradients that it cannot add to:
// a second contribution is an ACCUMULATE task.
graph::Graph ModelOf(const ModelSketch& sketch) {
  graph::Graph model;
  const auto add_value = [&](graph::Value value) {
    model.values.push_back(std::move(value));
    return static_cast<graph::ValueId>(model.values.size()) - 1;
  };
  model.input = add_value({.name = "batch", .kind = graph::ValueKind::kInput});
  for (size_t p = 0; p < sketch.parameter_counts.size(); ++p) {
    const std::string name = "parameter" + std::to_string(p);
    const Shape shape = {sketch.parameter_counts[p]};
    const graph::ValueId value = add_value({.name = name,
                                            .spec = {.shape = shape},
                                            .kind = graph::ValueKind::kParameter,
                                            .parameter = static_cast<int32_t>(p)});
    model.parameters.push_back({.name = name, .value = value, .shape = shape});
  }
  for (const SketchLayer& layer : sketch.layers) {
    graph::Node& node = model.nodes.emplace_back();
    node.name = std::to_string(model.nodes.size() - 1);
    node.priority = layer.priority;
    for (const size_t input : layer.inputs) node.inputs.push_back(model.nodes[input].outputs[0]);
    for (const size_t p : layer.parameters) node.inputs.push_back(model.parameters[p].value);
    if (node.inputs.empty()) node.inputs = {model.input};
    node.signature.output_count = 1;
    node.signature.differentiable_inputs = ~0u;
    const auto id = static_cast<graph::NodeId>(model.nodes.size()) - 1;
    model.loss = add_value({.name = node.name, .producer = id});
    node.outputs = {model.loss};
  }
  return model;
}

std::vector<HookTraits> HooksOf(const ModelSketch& sketch) {
  std::vector<HookTraits> hooks;
  if (sketch.local_hook) hooks.push_back({.stage = HookStage::kLocal});
  if (sketch.span_hook) hooks.push_back({.scope = HookScope::kSpan});
  if (sketch.global_hook) hooks.push_back({.scope = HookScope::kGlobal});
  return hooks;
}

const char* ShortName(TransferKind kind) {
  switch (kind) {
    case TransferKind::kReduceScatter:
      return "scatter";
    case TransferKind::kAllGather:
      return "gather";
    case TransferKind::kPush:
      return "push";
    case TransferKind::kPull:
      return "pull";
    default:
      return "bucket";
  }
}

}  // namespace

StepGraph::StepGraph(const ModelSketch& sketch)
    : sketch_(sketch),
      model_(ModelOf(sketch)),
      program_(graph::Differentiate(model_)),
      parameters_(exec::DescribeParameters(model_, program_)) {
  for (ParameterInfo& parameter : parameters_) {
    parameter.alone = std::count(sketch.tables.begin(), sketch.tables.end(), parameter.id) > 0;
  }
}

ModelInfo StepGraph::model_info() const {
  return {
      .parameters = parameters_,
      .communicator = {.kinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kReduceScatter) |
                                Bit(TransferKind::kAllGather) | Bit(TransferKind::kBarrier) |
                                Bit(TransferKind::kPush) | Bit(TransferKind::kPull),
                       .dtypes = Bit(DType::kFloat32),
                       .ordered = sketch_.served ? 0u : 1u},
      .gate = sketch_.global_hook ? UpdateGate::kGlobal : sketch_.gate,
      .world_size = sketch_.alone ? 1 : 2,
      .slice_multiple = sketch_.slice_multiple,
      .sharded = sketch_.sharded ? 1u : 0u,
      .served = sketch_.served ? 1u : 0u};
}

Status StepGraph::Plan(Scheduler& scheduler, std::mt19937* shuffle) {
  const ModelInfo info = model_info();
  ENGINE_ASSIGN_OR_RETURN(layout_, exec::MakeLayout(model_, info, scheduler, "under test"));
  std::vector<int64_t> row_elements(sketch_.parameter_counts.size());
  for (const size_t table : sketch_.tables) row_elements[table] = 1;
  const exec::ExecutorOptions run{.rank = {.world_size = info.world_size},
                                  .hook_names = {"hook0", "hook1", "hook2"}};
  graph_ =
      exec::BuildTaskGraph(model_, program_, graph::PlanMemory(model_, program_), layout_,
                           {.run = run,
                            .hooks = HooksOf(sketch_),
                            .gate = sketch_.gate,
                            .chains = sketch_.served    ? exec::ServedChains(layout_, row_elements)
                                      : sketch_.sharded ? exec::ShardedChains(layout_)
                                                        : exec::ReducedChains(layout_, nullptr),
                            .updates = !sketch_.served,
                            .own_part = sketch_.sharded,
                            .alone = sketch_.alone,
                            .asynchronous = sketch_.asynchronous});
  if (shuffle != nullptr) Shuffle(*shuffle);
  Rename();
  return {};
}

void StepGraph::Shuffle(std::mt19937& random) {
  std::vector<uint32_t> id_of(graph_.tasks.size());  // by sequence number
  std::iota(id_of.begin(), id_of.end(), 0);
  std::shuffle(id_of.begin(), id_of.end(), random);
  std::vector<exec::Task> tasks(id_of.size());
  for (exec::Task& task : graph_.tasks) {
    for (auto* const edges : {&task.successors, &task.next_successors}) {
      for (uint32_t& id : *edges) id = id_of[id];
    }
    task.info.id = id_of[task.info.id];
    tasks[task.info.id] = std::move(task);
  }
  graph_.tasks = std::move(tasks);
  if (graph_.statistics != UINT32_MAX) graph_.statistics = id_of[graph_.statistics];
}

// By layer or bucket; what belongs to neither is counted.
void StepGraph::Rename() {
  std::map<TaskKind, int64_t> seen;
  for (exec::Task& task : graph_.tasks) {
    const TaskInfo& info = task.info;
    int64_t number = info.bucket;
    if (info.kind == TaskKind::kForward || info.kind == TaskKind::kBackward) {
      number = program_.instructions[static_cast<size_t>(task.instruction)].node;
    } else if (info.bucket == exec::kNoBucket) {
      number = seen[info.kind]++;
    }
    const char* const verb =
        info.kind == TaskKind::kTransfer ? ShortName(info.transfer) : Name(info.kind);
    task.name = info.id == graph_.statistics ? "statistics" : verb + std::to_string(number);
    task.info.name = task.name;
    graph_.infos[info.id] = info;
  }
}

uint32_t StepGraph::Find(const std::string& name) const {
  for (const exec::Task& task : graph_.tasks) {
    if (task.name == name) return task.info.id;
  }
  ENGINE_CHECK(false, "there is no task '%s'", name.c_str());
}

}  // namespace engine::conform
