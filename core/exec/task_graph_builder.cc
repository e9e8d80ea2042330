// A task is known by its id, and a Task& only until the next one is added: the vector grows. Edges go
// from earlier to later ids within a step; those to the next step are added at the end (AddTail).
#include "core/exec/task_graph_builder.h"

#include <algorithm>

#include "core/exec/wire.h"

namespace engine::exec {

Task& TaskGraphBuilder::Add(TaskKind kind, std::string name) {
  const auto id = static_cast<uint32_t>(result.tasks.size());
  result.tasks.push_back(
      {.info = {.id = id, .kind = kind, .sequence = id}, .name = std::move(name)});
  return result.tasks.back();
}

void TaskGraphBuilder::After(int32_t earlier) {
  Task& task = result.tasks.back();
  result.tasks[earlier].successors.push_back(task.info.id);
  ++task.dependency_count;
}

Task& TaskGraphBuilder::AddHook(size_t hook, HookWork work, const std::string& on) {
  const char* verb = work == HookWork::kObserve ? " observe " : " ";
  Task& task = Add(TaskKind::kHook, options.hook_names[hook] + verb + on);
  task.hook = static_cast<int32_t>(hook);
  task.hook_work = work;
  return task;
}

Task& TaskGraphBuilder::AddWireHook(HookWork work, int32_t unit) {
  const std::string verb = work == HookWork::kPack ? "pack " : "unpack ";
  Task& task = AddHook(static_cast<size_t>(options.wire->hook), work, verb + NameOfUnit(unit));
  task.info.unit = static_cast<uint32_t>(unit);
  return task;
}

Task& TaskGraphBuilder::AddTransfer(TransferData data, int32_t unit, const TransferStage& stage) {
  Task& task =
      Add(TaskKind::kTransfer, unit == graph::kNone ? stage.verb : stage.verb + NameOfUnit(unit));
  task.info.lane = Lane::kIo;
  task.info.transfer = stage.kind;
  task.data = data;
  if (unit == graph::kNone) return task;
  const UnitLayout& of = layout.units[unit];
  task.info.unit = static_cast<uint32_t>(unit);
  task.info.priority = of.priority;
  task.info.size_bytes =
      options.wire != nullptr && data == TransferData::kGradients
          ? static_cast<uint64_t>(options.wire->BytesOf(layout, unit, options.world_size))
          : static_cast<uint64_t>(of.count) *
                (data == TransferData::kParameters ? SizeOf(of.gathered) : sizeof(float));
  if (task_of_instruction.empty()) {
    task.opens_step = true;
  } else {
    task.tail = true;
    task.info.needed_by = NeededBy(of);
  }
  return task;
}

bool TaskGraphBuilder::packed() const {
  return options.wire != nullptr && options.wire->packed();
}

std::string TaskGraphBuilder::NameOfUnit(int32_t unit) const {
  const std::vector<UnitSpan>& spans = layout.units[unit].spans;
  std::string name = NameOf(spans[0].parameter);
  if (spans[0].count < CountOf(spans[0].parameter)) {
    name += std::string("[").append(std::to_string(spans[0].offset)).append("..]");
  }
  if (spans.size() > 1) {
    name += std::string(" and ").append(std::to_string(spans.size() - 1)).append(" more");
  }
  return name;
}

uint32_t TaskGraphBuilder::NeededBy(const UnitLayout& unit) const {
  uint32_t first = UINT32_MAX;
  for (const UnitSpan& span : unit.spans) first = std::min(first, FirstUse(span.parameter));
  return first;
}

std::vector<TaskSpan> TaskGraphBuilder::SpansOf(int32_t unit, bool own_part) const {
  const UnitLayout& of = layout.units[unit];
  int64_t begin = of.offset, end = of.offset + of.count;
  if (own_part) {
    const int64_t part = of.count / options.world_size;
    begin = of.offset + options.rank * part;
    end = begin + part;
  }
  std::vector<TaskSpan> spans;
  for (const UnitSpan& span : of.spans) {
    const int64_t parameter = layout.offset[layout.parameters[span.parameter]];
    const int64_t from = std::max(begin, parameter + span.offset);
    const int64_t to = std::min(end, parameter + span.offset + span.count);
    if (from >= to) continue;
    spans.push_back({.parameter = static_cast<int32_t>(span.parameter),
                     .unit = unit,
                     .offset = from - parameter,
                     .count = to - from});
  }
  return spans;
}

}  // namespace engine::exec
