#include "tests/conformance/scheduler/step_graph.h"

#include <algorithm>
#include <numeric>

namespace engine::test {
namespace {

template <typename T>
void SortUnique(std::vector<T>* list) {
  std::sort(list->begin(), list->end());
  list->erase(std::unique(list->begin(), list->end()), list->end());
}

}  // namespace

StepGraph::StepGraph(const ModelSketch& model, std::mt19937* shuffle)
    : model_(model), shuffle_(shuffle) {
  AddForwardAndBackward();
}

size_t StepGraph::AddTask(TaskKind kind, const std::string& name, std::vector<size_t> waits_for) {
  Draft draft;
  draft.info.kind = kind;
  draft.info.lane = kind == TaskKind::kTransfer ? Lane::kIo : Lane::kCompute;
  draft.info.name = names_.emplace_back(name);
  draft.place = static_cast<int64_t>(drafts_.size());
  SortUnique(&waits_for);
  draft.waits_for = std::move(waits_for);
  drafts_.push_back(std::move(draft));
  return drafts_.size() - 1;
}

size_t StepGraph::AddTransfer(TransferKind kind, const std::string& name,
                              std::vector<size_t> waits_for, uint32_t bucket, uint64_t size_bytes) {
  const size_t draft = AddTask(TaskKind::kTransfer, name, std::move(waits_for));
  drafts_[draft].info.transfer = kind;
  drafts_[draft].info.bucket = bucket;
  drafts_[draft].info.size_bytes = size_bytes;
  return draft;
}

void StepGraph::AddForwardAndBackward() {
  const size_t layers = model_.layers.size();
  std::vector<std::vector<size_t>> consumers(layers);
  std::vector<size_t> first_user(model_.parameter_counts.size(), layers);
  for (size_t i = 0; i < layers; ++i) {
    // Layers are added in order, so the forward draft of a layer is its index.
    const SketchLayer& layer = model_.layers[i];
    AddTask(TaskKind::kForward, "forward" + std::to_string(i), layer.inputs);
    drafts_[i].info.priority = layer.priority;
    drafts_[i].opens_step = true;
    for (size_t input : layer.inputs) consumers[input].push_back(i);
    for (size_t p : layer.parameters) first_user[p] = std::min(first_user[p], i);
  }
  std::vector<size_t> backward(layers);
  for (size_t i = layers; i-- > 0;) {
    std::vector<size_t> waits_for = {i, layers - 1};  // the last layer is the loss
    for (size_t consumer : consumers[i]) waits_for.push_back(backward[consumer]);
    backward[i] = AddTask(TaskKind::kBackward, "backward" + std::to_string(i), waits_for);
    drafts_[backward[i]].info.priority = model_.layers[i].priority;
    for (size_t p = 0; p < first_user.size(); ++p) {
      if (first_user[p] == i) AddAccumulate(p, backward);
    }
  }
  for (Draft& draft : drafts_) draft.is_head = true;
}

void StepGraph::AddAccumulate(size_t ordinal, const std::vector<size_t>& backward) {
  std::vector<size_t> contributions;
  uint32_t first_use = UINT32_MAX;
  for (size_t i = 0; i < model_.layers.size(); ++i) {
    const auto& used = model_.layers[i].parameters;
    if (std::count(used.begin(), used.end(), ordinal) == 0) continue;
    contributions.push_back(backward[i]);
    first_use = std::min(first_use, static_cast<uint32_t>(i));
  }
  const std::string name = std::to_string(ordinal);
  const int32_t priority = model_.layers[first_use].priority;
  size_t ready = AddTask(TaskKind::kAccumulate, "accumulate" + name, contributions);
  drafts_[ready].info.priority = priority;
  ParameterInfo info;
  info.id = static_cast<uint32_t>(parameters_.size());
  info.first_use = first_use;
  info.ready = static_cast<uint32_t>(ready);
  info.count = model_.parameter_counts[ordinal];
  info.name = names_.emplace_back("parameter" + name);
  info.alone = std::count(model_.tables.begin(), model_.tables.end(), ordinal) > 0 ? 1 : 0;
  if (model_.local_hook) {
    ready = AddTask(TaskKind::kHook, "local_hook" + name, {ready});
    drafts_[ready].info.priority = priority;
  }
  gradient_ready_.push_back(ready);
  ordinal_of_.push_back(ordinal);
  parameters_.push_back(info);
}

ModelInfo StepGraph::model_info() const {
  ModelInfo info;
  info.parameters = parameters_;
  info.communicator.kinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kReduceScatter) |
                            Bit(TransferKind::kAllGather) | Bit(TransferKind::kBarrier) |
                            Bit(TransferKind::kPush) | Bit(TransferKind::kPull);
  info.communicator.ordered = model_.served ? 0 : 1;
  info.communicator.dtypes = Bit(DType::kFloat32);
  info.gate = model_.global_hook ? UpdateGate::kGlobal : model_.gate;
  info.world_size = model_.alone ? 1 : 2;
  info.slice_multiple = model_.slice_multiple;
  info.sharded = model_.sharded ? 1 : 0;
  info.served = model_.served ? 1 : 0;
  return info;
}

void StepGraph::Complete(const std::vector<PlannedBucket>& buckets) {
  const size_t loss = model_.layers.size() - 1;
  if (!model_.asynchronous && !model_.alone) {
    statistics_ = AddTransfer(TransferKind::kAllReduce, "statistics", {loss});
    drafts_[statistics_].place = static_cast<int64_t>(loss);
  }
  if (model_.served) {
    AddServed(buckets);
    AssignIds();
    return;
  }
  const std::vector<size_t> arrives = model_.alone ? std::vector<size_t>() : AddBuckets(buckets);
  std::vector<Group> groups = MakeGroups(buckets, arrives);
  AddTail(buckets, groups);
  Carry(groups);
  AssignIds();
}

bool StepGraph::IsTable(const PlannedBucket& bucket) const {
  return parameters_[bucket.spans.front().parameter].alone != 0;
}

std::vector<size_t> StepGraph::ForwardOf(uint32_t parameter) const {
  std::vector<size_t> drafts;
  for (size_t i = 0; i < model_.layers.size(); ++i) {
    const auto& used = model_.layers[i].parameters;
    if (std::count(used.begin(), used.end(), ordinal_of_[parameter]) > 0) drafts.push_back(i);
  }
  return drafts;
}

void StepGraph::AddServed(const std::vector<PlannedBucket>& buckets) {
  const std::vector<size_t> pushes = AddBuckets(buckets);
  for (uint32_t u = 0; u < buckets.size(); ++u) {
    const TaskInfo of_push = drafts_[pushes[u]].info;
    const bool opens = IsTable(buckets[u]);
    const size_t pull =
        AddTransfer(TransferKind::kPull, "pull" + std::to_string(u),
                    opens ? std::vector<size_t>() : std::vector{pushes[u]}, u, of_push.size_bytes);
    drafts_[pull].info.priority = of_push.priority;
    if (opens) {
      OpenStep(buckets[u], pushes[u], pull);
      continue;
    }
    drafts_[pull].info.needed_by = of_push.needed_by;
    for (const BucketSpan& span : buckets[u].spans) {
      for (size_t forward : ForwardOf(span.parameter)) drafts_[forward].carried.push_back(pull);
    }
  }
  for (Draft& draft : drafts_) SortUnique(&draft.carried);
}

void StepGraph::OpenStep(const PlannedBucket& bucket, size_t push, size_t pull) {
  drafts_[pull].place = -1;
  drafts_[pull].is_head = drafts_[pull].opens_step = true;
  drafts_[pull].carried = {push};
  for (size_t forward : ForwardOf(bucket.spans.front().parameter)) {
    drafts_[forward].waits_for.push_back(pull);
  }
}

// Returns by bucket the draft after which its gradients are there.
std::vector<size_t> StepGraph::AddBuckets(const std::vector<PlannedBucket>& buckets) {
  std::vector<size_t> arrives;
  for (uint32_t u = 0; u < buckets.size(); ++u) {
    const bool scatter =
        !model_.served && (model_.sharded || buckets[u].stages != BucketStages::kAllReduce);
    std::vector<size_t> waits_for;
    uint32_t needed_by = UINT32_MAX;
    for (const BucketSpan& span : buckets[u].spans) {
      waits_for.push_back(gradient_ready_[span.parameter]);
      needed_by = std::min(needed_by, parameters_[span.parameter].first_use);
    }
    const size_t place = *std::max_element(waits_for.begin(), waits_for.end());
    const TransferKind kind = model_.served ? TransferKind::kPush
                              : scatter     ? TransferKind::kReduceScatter
                                            : TransferKind::kAllReduce;
    const char* const verb = model_.served ? "push" : scatter ? "scatter" : "bucket";
    arrives.push_back(
        AddTransfer(kind, verb + std::to_string(u), waits_for, u, buckets[u].size_bytes()));
    drafts_.back().place = static_cast<int64_t>(place);
    drafts_.back().info.needed_by = needed_by;
    drafts_.back().info.priority = buckets[u].priority;
  }
  for (uint32_t u = 0; u < buckets.size() && !model_.sharded && !model_.served; ++u) {
    if (buckets[u].stages == BucketStages::kAllReduce) continue;
    const uint32_t needed_by = drafts_[arrives[u]].info.needed_by;
    arrives[u] = AddTransfer(TransferKind::kAllGather, "gather" + std::to_string(u), {arrives[u]},
                             u, buckets[u].size_bytes());
    drafts_.back().info.needed_by = needed_by;
    drafts_.back().info.priority = buckets[u].priority;
  }
  return arrives;
}

std::vector<StepGraph::Group> StepGraph::MakeGroups(const std::vector<PlannedBucket>& buckets,
                                                    const std::vector<size_t>& arrives) const {
  const bool by_bucket = model_.gate != UpdateGate::kTensor && !model_.alone;
  std::vector<Group> groups(by_bucket ? buckets.size() : parameters_.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].name = std::to_string(g);
    groups[g].waits_for = {model_.alone ? gradient_ready_[g] : statistics_};
    if (by_bucket) groups[g].bucket = static_cast<uint32_t>(g);
  }
  for (size_t u = 0; u < buckets.size(); ++u) {
    for (const BucketSpan& span : buckets[u].spans) {
      Group& group = groups[by_bucket ? u : span.parameter];
      if (!model_.alone) group.waits_for.push_back(arrives[u]);
      group.parameters.push_back(span.parameter);
      group.needed_by = std::min(group.needed_by, parameters_[span.parameter].first_use);
    }
  }
  return groups;
}

void StepGraph::AddTail(const std::vector<PlannedBucket>& buckets, std::vector<Group>& groups) {
  if (groups.empty()) return;  // nothing is trained
  for (Group& group : groups) {
    if (model_.span_hook) Step(group, TaskKind::kHook, "span_hook");
  }
  if (model_.global_hook) {
    for (Group& group : groups) Step(group, TaskKind::kHook, "observe");
    if (model_.sharded) {
      Meet(groups, AddTransfer(TransferKind::kAllReduce, "sums", LastOfAll(groups)));
    }
    Meet(groups, AddTask(TaskKind::kHook, "all_observed", LastOfAll(groups)));
    for (Group& group : groups) Step(group, TaskKind::kHook, "apply");
  }
  if (model_.gate == UpdateGate::kGlobal) {
    Meet(groups, AddTask(TaskKind::kHook, "all_there", LastOfAll(groups)));
  }
  for (Group& group : groups) Step(group, TaskKind::kUpdate, "update");
  for (Group& group : groups) {
    if (!model_.sharded) break;
    group.waits_for = {AddTransfer(TransferKind::kAllGather, "gather" + group.name, group.waits_for,
                                   group.bucket, buckets[group.bucket].size_bytes())};
    drafts_.back().info.needed_by = group.needed_by;
    drafts_.back().info.priority = buckets[group.bucket].priority;
  }
}

// The group's next task.
void StepGraph::Step(Group& group, TaskKind kind, const std::string& verb) {
  group.waits_for = {AddTask(kind, verb + group.name, group.waits_for)};
  drafts_.back().info.needed_by = group.needed_by;
}

// `task` comes next for all groups.
void StepGraph::Meet(std::vector<Group>& groups, size_t task) {
  for (Group& group : groups) {
    group.waits_for = {task};
    drafts_[task].info.needed_by = std::min(drafts_[task].info.needed_by, group.needed_by);
  }
}

std::vector<size_t> StepGraph::LastOfAll(const std::vector<Group>& groups) const {
  std::vector<size_t> all;
  if (statistics_ != 0) all.push_back(statistics_);
  for (const Group& group : groups) {
    all.insert(all.end(), group.waits_for.begin(), group.waits_for.end());
  }
  return all;
}

void StepGraph::Carry(const std::vector<Group>& groups) {
  for (const Group& group : groups) {
    for (uint32_t parameter : group.parameters) {
      for (size_t last : group.waits_for) {
        drafts_[last].completes.push_back(static_cast<int32_t>(parameter));
      }
      for (size_t forward : ForwardOf(parameter)) {
        Draft& reader = drafts_[forward];
        reader.reads.push_back(static_cast<int32_t>(parameter));
        reader.carried.insert(reader.carried.end(), group.waits_for.begin(), group.waits_for.end());
      }
    }
  }
  for (Draft& draft : drafts_) SortUnique(&draft.carried);
}

void StepGraph::AssignIds() {
  std::vector<size_t> order(drafts_.size());  // drafts in the order of a single thread
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return drafts_[a].place < drafts_[b].place; });
  std::vector<uint32_t> id_of(drafts_.size());  // by draft
  for (uint32_t sequence = 0; sequence < order.size(); ++sequence) {
    drafts_[order[sequence]].info.sequence = id_of[order[sequence]] = sequence;
  }
  // Until now in layers, as plans know it: what opens a step comes before them.
  for (Draft& draft : drafts_) {
    if (draft.info.needed_by != UINT32_MAX) draft.info.needed_by = id_of[draft.info.needed_by];
  }
  if (shuffle_) std::shuffle(id_of.begin(), id_of.end(), *shuffle_);
  graph_.tasks.resize(drafts_.size());
  for (size_t i = 0; i < drafts_.size(); ++i) {
    Draft& draft = drafts_[i];
    exec::Task& task = graph_.tasks[id_of[i]];
    task.info = draft.info;
    task.info.id = id_of[i];
    task.name = draft.info.name;
    task.reads = draft.reads;
    task.completes = draft.completes;
    task.opens_step = draft.opens_step;
    task.tail = !draft.is_head && (statistics_ == 0 || i != statistics_);
    task.dependency_count = static_cast<int32_t>(draft.waits_for.size());
    task.carried_count = static_cast<int32_t>(draft.carried.size());
    for (size_t j : draft.waits_for) graph_.tasks[id_of[j]].successors.push_back(id_of[i]);
    for (size_t j : draft.carried) graph_.tasks[id_of[j]].next_successors.push_back(id_of[i]);
  }
  for (const exec::Task& task : graph_.tasks) graph_.infos.push_back(task.info);
  if (statistics_ != 0) graph_.statistics = id_of[statistics_];
}

uint32_t StepGraph::Find(const std::string& name) const {
  for (const exec::Task& task : graph_.tasks) {
    if (task.name == name) return task.info.id;
  }
  ENGINE_CHECK(false, "there is no task '%s'", name.c_str());
}

}  // namespace engine::test
