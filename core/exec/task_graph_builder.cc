// Ids are given in the order of Add, which is that in which one thread would run the step: an edge
// within a step goes from a smaller id to a larger one, so the graph of a step has no circle.
#include "core/exec/task_graph_builder.h"

#include <algorithm>
#include <utility>

#include "core/exec/wire.h"

namespace engine::exec {

Task& TaskGraphBuilder::Add(TaskKind kind, std::string name) {
  const auto id = static_cast<uint32_t>(result.tasks.size());
  result.tasks.push_back(
      {.info = {.id = id, .kind = kind, .sequence = id}, .name = std::move(name)});
  return result.tasks.back();
}

// Only the task made last gets edges, so one that is there already is the newest of `earlier`.
void TaskGraphBuilder::After(int32_t earlier) {
  Task& task = result.tasks.back();
  std::vector<uint32_t>& successors = result.tasks[earlier].successors;
  if (!successors.empty() && successors.back() == task.info.id) return;
  successors.push_back(task.info.id);
  ++task.dependency_count;
}

void TaskGraphBuilder::After(const std::vector<int32_t>& earlier) {
  for (const int32_t one : earlier) After(one);
}

Task& TaskGraphBuilder::AddHook(size_t hook, HookWork work, const std::string& on) {
  const char* verb = work == HookWork::kObserve ? " observe " : " ";
  Task& task = Add(TaskKind::kHook, options.run.hook_names[hook] + verb + on);
  task.hook = static_cast<int32_t>(hook);
  task.hook_work = work;
  return task;
}

Task& TaskGraphBuilder::AddWireHook(HookWork work, int32_t bucket) {
  const std::string verb = work == HookWork::kPack ? "pack " : "unpack ";
  Task& task = AddHook(static_cast<size_t>(options.wire->hook), work, verb + NameOfBucket(bucket));
  task.info.bucket = static_cast<uint32_t>(bucket);
  return task;
}

Task& TaskGraphBuilder::AddTransfer(TransferData data, int32_t bucket, const TransferStage& stage) {
  Task& task = Add(TaskKind::kTransfer,
                   bucket == graph::kNone ? stage.verb : stage.verb + NameOfBucket(bucket));
  task.info.lane = Lane::kIo;
  task.info.transfer = stage.kind;
  task.data = data;
  if (bucket == graph::kNone) return task;
  const BucketLayout& of = layout.buckets[bucket];
  task.info.bucket = static_cast<uint32_t>(bucket);
  task.info.priority = of.priority;
  task.info.size_bytes =
      options.wire != nullptr && data == TransferData::kGradients
          ? static_cast<uint64_t>(options.wire->bucket_bytes[bucket])
          : static_cast<uint64_t>(of.count) *
                (data == TransferData::kParameters ? SizeOf(of.gathered) : sizeof(float));
  task.opens_step = task_of_instruction.empty();
  task.tail = !task.opens_step;
  if (task.tail) task.info.needed_by = NeededBy(ParametersOf(bucket));
  return task;
}

std::string TaskGraphBuilder::NameOfBucket(int32_t bucket) const {
  const std::vector<BucketSpan>& spans = layout.buckets[bucket].spans;
  const graph::Parameter& first = ParameterAt(static_cast<int32_t>(spans[0].parameter));
  std::string name = first.name;
  if (spans[0].count < first.shape.Count()) {
    name += std::string("[").append(std::to_string(spans[0].offset)).append("..]");
  }
  if (spans.size() > 1) {
    name += std::string(" and ").append(std::to_string(spans.size() - 1)).append(" more");
  }
  return name;
}

std::vector<int32_t> TaskGraphBuilder::ParametersOf(int32_t bucket) const {
  std::vector<int32_t> positions;
  for (const BucketSpan& span : layout.buckets[bucket].spans) {
    positions.push_back(static_cast<int32_t>(span.parameter));
  }
  return positions;
}

uint32_t TaskGraphBuilder::NeededBy(const std::vector<int32_t>& positions) const {
  uint32_t first = UINT32_MAX;
  for (const int32_t position : positions) {
    const int32_t reader = task_of_instruction[UsersOf(position).front()];
    first = std::min(first, static_cast<uint32_t>(reader));
  }
  return first;
}

std::vector<TaskSpan> TaskGraphBuilder::SpansOf(int32_t bucket, bool own_part) const {
  const BucketLayout& of = layout.buckets[bucket];
  const int64_t part = own_part ? of.count / options.run.rank.world_size : of.count;
  const int64_t begin = of.offset + (own_part ? options.run.rank.rank * part : 0);
  std::vector<TaskSpan> spans;
  for (const BucketSpan& span : of.spans) {
    const int64_t parameter = layout.OffsetOf(span.parameter);
    const int64_t from = std::max(begin, parameter + span.offset);
    const int64_t to = std::min(begin + part, parameter + span.offset + span.count);
    if (from >= to) continue;
    spans.push_back({.parameter = static_cast<int32_t>(span.parameter),
                     .bucket = bucket,
                     .offset = from - parameter,
                     .count = to - from});
  }
  return spans;
}

}  // namespace engine::exec
