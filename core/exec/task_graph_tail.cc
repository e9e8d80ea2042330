// The tail, bucket by bucket or parameter by parameter:
//
//   [TRANSFER(bucket)] [UNPACK(bucket)] -> reduced hooks -> UPDATE -> [TRANSFER(bucket) of parameters]
//
// Groups carry what comes next through the chain: each stage waits for the `waits` of its group and
// becomes them. Where all must have come by, as for a global hook, one task waits for those of all
// groups and becomes those of each. What a group waits for at the end is what the forward tasks of
// the next step wait for that read its parameters.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/exec/task_graph_builder.h"
#include "core/exec/wire.h"

namespace engine::exec {
namespace {

// What hooks and updates work on at once: a bucket, a whole parameter, or everything.
struct Group {
  std::string name;
  std::vector<TaskSpan> spans;      // of this rank
  std::vector<int32_t> parameters;  // positions: of the spans of all ranks
  std::vector<int32_t> waits;       // what its next task waits for
  int32_t first_scale = 0;
  int32_t bucket = graph::kNone;  // of groups that are buckets; else as TaskInfo has it: kNoBucket
};

class Tail {
 public:
  explicit Tail(TaskGraphBuilder* tasks)
      : t_(*tasks), bucket_count_(static_cast<int32_t>(t_.bucket_task.size())) {}

  void Add() {
    if (!t_.options.alone) AddGathersOfGradients();
    if (t_.options.updates) AddUpdates();
    if (!t_.options.alone) AddTransfersOfParameters();
    CarryToNextStep();
  }

 private:
  void AddGathersOfGradients() {
    for (int32_t u = 0; u < bucket_count_; ++u) {
      const std::vector<TransferStage>& stages = t_.options.chains[u].gradients;
      for (size_t s = 1; s < stages.size(); ++s) {
        t_.AddTransfer(TransferData::kGradients, u, stages[s]);
        Follow(u);
      }
    }
    for (int32_t u = 0; u < bucket_count_ && t_.options.wire != nullptr; ++u) AddUnpack(u);
  }

  // The task made last is the next one of the chain of a bucket's gradients.
  void Follow(int32_t bucket) {
    t_.After(t_.bucket_task[bucket]);
    t_.bucket_task[bucket] = t_.LastId();
  }

  void AddUnpack(int32_t bucket) {
    Task& task = t_.AddWireHook(HookWork::kUnpack, bucket);
    task.spans = t_.SpansOf(bucket, t_.options.own_part);
    task.blocks = t_.options.wire->packed() ? t_.options.run.rank.world_size : 1;
    task.info.needed_by = t_.NeededBy(t_.ParametersOf(bucket));
    task.tail = true;
    Follow(bucket);
  }

  void AddUpdates() {
    MakeGroups();
    if (groups_.empty()) return;  // nothing is trained, so no join would ever become ready
    for (Group& group : groups_) {
      group.first_scale = t_.result.scale_count;
      t_.result.scale_count += static_cast<int32_t>(group.spans.size());
    }
    for (size_t h = 0; h < t_.options.hooks.size(); ++h) {
      if (t_.options.hooks[h].stage != HookStage::kReduced) continue;
      if (t_.options.hooks[h].scope == HookScope::kGlobal) AddObservation(h);
      for (Group& group : groups_) Step(group, t_.AddHook(h, HookWork::kApply, group.name));
    }
    if (t_.options.gate == UpdateGate::kGlobal || t_.options.updates_together) {
      AddJoin(t_.Add(TaskKind::kHook, "all gradients are there"));
    }
    for (Group& group : groups_) {
      Step(group, t_.Add(TaskKind::kUpdate, std::string("update ").append(group.name)));
    }
  }

  // When what holds the bucket is updated: a group of its own, one of everything, or none, as servers
  // have done it.
  void AddTransfersOfParameters() {
    if (bucket_count_ == 0 || t_.options.chains[0].parameters.empty()) return;
    const std::vector<Group> updated = std::exchange(groups_, {});
    for (int32_t u = 0; u < bucket_count_; ++u) {
      const BucketChain& chain = t_.options.chains[u];
      if (!chain.opens_step) {
        t_.AddTransfer(TransferData::kParameters, u, chain.parameters[0]);
        t_.After(updated.empty() ? std::vector<int32_t>{t_.bucket_task[u]}
                                 : updated[std::min<size_t>(u, updated.size() - 1)].waits);
        t_.bucket_task[u] = t_.LastId();
      }
      AddBucketGroup(u, {t_.bucket_task[u]});
    }
  }

  void AddObservation(size_t hook) {
    for (Group& group : groups_) Step(group, t_.AddHook(hook, HookWork::kObserve, group.name));
    if (t_.options.own_part) {
      const std::string name = "transfer sums of " + t_.options.run.hook_names[hook];
      Task& sum = t_.AddTransfer(TransferData::kObserved, graph::kNone,
                                 {TransferKind::kAllReduce, name.c_str()});
      sum.hook = static_cast<int32_t>(hook);
      sum.info.size_bytes = sizeof(float);
      AddJoin(sum);
    }
    Task& task = t_.Add(TaskKind::kHook, t_.options.run.hook_names[hook] + " has observed all");
    task.hook = static_cast<int32_t>(hook);
    AddJoin(task);
  }

  // `task`, made last, comes next in the group's chain.
  void Step(Group& group, Task& task) {
    task.spans = group.spans;
    task.first_scale = group.first_scale;
    task.info.bucket = static_cast<uint32_t>(group.bucket);
    task.info.needed_by = t_.NeededBy(group.parameters);
    task.tail = true;
    t_.After(group.waits);
    group.waits = {t_.LastId()};
  }

  // `task`, made last, comes next in the chains of all groups.
  void AddJoin(Task& task) {
    if (task.info.kind == TaskKind::kHook) task.hook_work = HookWork::kAllObserved;
    task.tail = true;
    task.info.needed_by = t_.NeededBy(t_.all);
    for (const Group& group : groups_) t_.After(group.waits);
    for (Group& group : groups_) group.waits = {t_.LastId()};
  }

  // On an accelerator, for which the host only queues work, one group of everything, if all updates
  // become ready at once or the device does nothing beside them: then more launches would let
  // nothing begin sooner. On a host forward tasks of the next step run between updates, each as
  // soon as those of its parameters are done; and with one rank an update of one parameter finds
  // more of it in a cache, behind the backward pass that makes the gradient or before the forward
  // pass that reads the value.
  void MakeGroups() {
    const TaskGraphOptions& options = t_.options;
    bool whole = options.gate == UpdateGate::kTensor;
    bool all_wait = options.gate == UpdateGate::kGlobal || options.alone;
    for (const HookTraits& hook : options.hooks) {
      if (hook.stage != HookStage::kReduced) continue;
      whole |= hook.scope == HookScope::kTensor;
      all_wait |= hook.scope == HookScope::kGlobal;
    }
    ENGINE_CHECK(!whole || !options.own_part, "updates of whole parameters cannot be sharded");
    if (t_.all.empty()) return;
    const auto statistics = static_cast<int32_t>(t_.result.statistics);
    if (options.accelerator && all_wait) {
      AddGroupOfAll();
    } else if (whole || options.alone) {
      for (const int32_t position : t_.all) {
        groups_.push_back({.name = t_.ParameterAt(position).name,
                           .spans = {t_.WholeOf(position)},
                           .parameters = {position},
                           .waits = Arrivals(position)});
      }
    } else {
      for (int32_t u = 0; u < bucket_count_; ++u) {
        AddBucketGroup(u, {statistics, t_.bucket_task[u]});
      }
    }
  }

  void AddGroupOfAll() {
    Group all{.name = std::to_string(t_.all.size()) + " parameters", .parameters = t_.all};
    const auto append = [](const auto& from, auto* to) {
      to->insert(to->end(), from.begin(), from.end());
    };
    for (const int32_t position : t_.all) {
      append(Arrivals(position), &all.waits);
      if (!t_.options.own_part) all.spans.push_back(t_.WholeOf(position));
    }
    for (int32_t u = 0; u < bucket_count_ && t_.options.own_part; ++u) {
      append(t_.SpansOf(u, /*own_part=*/true), &all.spans);
    }
    groups_.push_back(std::move(all));
  }

  // What must be done before a parameter's gradient may be looked at, and its mean is known.
  std::vector<int32_t> Arrivals(int32_t position) const {
    if (t_.options.alone) return t_.sent[position];
    std::vector<int32_t> arrivals = {static_cast<int32_t>(t_.result.statistics)};
    for (const int32_t bucket : t_.layout.buckets_of[position]) {
      arrivals.push_back(t_.bucket_task[bucket]);
    }
    return arrivals;
  }

  void AddBucketGroup(int32_t bucket, std::vector<int32_t> waits) {
    groups_.push_back({.name = t_.NameOfBucket(bucket),
                       .spans = t_.SpansOf(bucket, t_.options.own_part),
                       .parameters = t_.ParametersOf(bucket),
                       .waits = std::move(waits),
                       .bucket = bucket});
  }

  // Forward tasks, and transfers that open a step, wait for the last task of the step before that
  // changes what they read.
  void CarryToNextStep() {
    std::vector<std::vector<int32_t>> last(t_.all.size());
    for (const Group& group : groups_) {
      for (const int32_t position : group.parameters) {
        last[position].insert(last[position].end(), group.waits.begin(), group.waits.end());
      }
    }
    for (const int32_t position : t_.all) {
      for (const int32_t task : last[position]) t_.result.tasks[task].completes.push_back(position);
      if (t_.pull[position] != graph::kNone) Carry(last[position], t_.pull[position]);
      for (const int32_t user : t_.UsersOf(position)) {
        if (user >= t_.program.forward_count) continue;
        const int32_t reader = t_.task_of_instruction[user];
        t_.result.tasks[reader].reads.push_back(position);
        Carry(last[position], reader);
      }
    }
  }

  // `reader` of the next step waits for `tasks`.
  void Carry(const std::vector<int32_t>& tasks, int32_t reader) {
    for (const int32_t task : tasks) {
      std::vector<uint32_t>& next = t_.result.tasks[task].next_successors;
      const auto id = static_cast<uint32_t>(reader);
      if (!next.empty() && next.back() == id) continue;
      next.push_back(id);
      ++t_.result.tasks[reader].carried_count;
    }
  }

  TaskGraphBuilder& t_;
  const int32_t bucket_count_;
  std::vector<Group> groups_;
};

}  // namespace

void AddTail(TaskGraphBuilder* tasks) {
  Tail(tasks).Add();
}

}  // namespace engine::exec
