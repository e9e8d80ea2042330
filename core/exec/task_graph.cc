#include "core/exec/task_graph.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "core/exec/wire.h"

namespace engine {
namespace {

constexpr uint64_t kStatisticsBytes = 20 * sizeof(float);

// What hooks and updates work on at once: a unit, a whole parameter, or everything.
struct Group {
  std::string name;
  std::vector<TaskSpan> spans;      // of this rank
  std::vector<int32_t> parameters;  // positions: of the spans of all ranks
  std::vector<int32_t> waits;       // what its next task waits for
  int32_t unit = kNone;             // of groups that are units
};

class TaskGraphBuilder {
 public:
  TaskGraphBuilder(const Graph& graph, const Program& program, const MemoryPlan& plan,
                   const FlatLayout& layout, const TaskGraphOptions& options)
      : graph_(graph),
        program_(program),
        plan_(plan),
        layout_(layout),
        options_(options),
        sent_(layout.parameters.size(), kNone),
        unit_waits_(layout.units.size()),
        unit_task_(layout.units.size(), kNone) {}

  TaskGraph Run() {
    for (size_t u = 0; u < layout_.units.size(); ++u) {
      unit_waits_[u] = static_cast<int32_t>(layout_.units[u].spans.size());
      if (RowsOf(static_cast<int32_t>(u)) > 0) AddRowPull(static_cast<int32_t>(u));
    }
    const auto count = static_cast<int32_t>(program_.instructions.size());
    for (int32_t k = 0; k < count; ++k) {
      AddInstruction(k);
      if (k + 1 == program_.forward_count) {
        AddMicroBatches();
        AddStatistics();
      }
      for (size_t p = 0; p < layout_.parameters.size(); ++p) {
        if (UsersOf(p).back() == k) AddLocalPipeline(static_cast<int32_t>(p));
      }
    }
    AddTail();
    CarryToNextStep();
    for (Task& task : result_.tasks) {
      task.info.name = task.name;
      result_.infos.push_back(task.info);
    }
    result_.digest = Digest();
    return std::move(result_);
  }

 private:
  uint64_t Digest() const {
    std::string text;
    for (const Task& task : result_.tasks) {
      text += task.name + ' ' + std::to_string(static_cast<int>(task.info.kind)) + ' ' +
              std::to_string(task.info.unit) + ' ' + std::to_string(task.info.size_bytes) + ' ' +
              std::to_string(static_cast<int>(task.info.transfer)) + ' ' +
              std::to_string(static_cast<int>(task.data)) + '\n';
    }
    return XXH3_64bits(text.data(), text.size());
  }

  // > 0: of the unit only some rows travel.
  int64_t RowsOf(int32_t unit) const {
    if (options_.row_elements.empty()) return 0;
    return options_.row_elements[layout_.units[unit].spans[0].parameter];
  }

  const std::vector<int32_t>& UsersOf(size_t position) const {
    return program_.users_of_parameter[layout_.parameters[position]];
  }
  const std::string& NameOf(size_t position) const {
    return graph_.parameters[layout_.parameters[position]].name;
  }
  int64_t CountOf(size_t position) const {
    return graph_.parameters[layout_.parameters[position]].shape.Count();
  }

  std::string NameOfUnit(int32_t unit) const {
    const std::vector<UnitSpan>& spans = layout_.units[unit].spans;
    std::string name = NameOf(spans[0].parameter);
    if (spans[0].count < CountOf(spans[0].parameter)) {
      name += std::string("[").append(std::to_string(spans[0].offset)).append("..]");
    }
    if (spans.size() > 1)
      name += std::string(" and ").append(std::to_string(spans.size() - 1)).append(" more");
    return name;
  }

  Task& Add(TaskKind kind, std::string name) {
    const auto id = static_cast<uint32_t>(result_.tasks.size());
    Task task{.info = {.id = id, .kind = kind, .sequence = id}, .name = std::move(name)};
    result_.tasks.push_back(std::move(task));
    return result_.tasks.back();
  }

  // The task made last waits for `earlier`.
  void After(int32_t earlier) {
    Task& task = result_.tasks.back();
    result_.tasks[earlier].successors.push_back(task.info.id);
    ++task.dependency_count;
  }

  void AddInstruction(int32_t k) {
    const Instruction& instruction = program_.instructions[k];
    const Node& node = graph_.nodes[instruction.node];
    const TaskKind kind = instruction.kind == InstructionKind::kForward    ? TaskKind::kForward
                          : instruction.kind == InstructionKind::kBackward ? TaskKind::kBackward
                                                                           : TaskKind::kAccumulate;
    Task& task = Add(kind, std::string(Name(kind)) + " " + node.name);
    task.instruction = k;
    task.opens_step = kind == TaskKind::kForward;
    task.info.priority = node.priority;
    task_of_instruction_.push_back(static_cast<int32_t>(task.info.id));
    for (int32_t earlier : plan_.depends_on[k]) After(task_of_instruction_[earlier]);
    if (micro_batches_ != kNone && FollowsForwardOnly(k)) After(micro_batches_);
    if (kind != TaskKind::kAccumulate && options_.world_size > 1 &&
        node.signature.uses_replicas != 0) {
      task.gathers = true;
      AfterLastGather(k);
    }
    if (kind != TaskKind::kForward) return;
    for (const auto& [unit, pull] : row_pulls_) {
      const std::vector<int32_t>& users = UsersOf(layout_.units[unit].spans[0].parameter);
      if (std::find(users.begin(), users.end(), k) != users.end()) After(pull);
    }
  }

  bool FollowsForwardOnly(int32_t k) const {
    const std::vector<int32_t>& earlier = plan_.depends_on[k];
    return std::all_of(earlier.begin(), earlier.end(),
                       [&](int32_t other) { return other < program_.forward_count; });
  }

  // It overwrites what any forward task has left, and what any backward task reads.
  void AddMicroBatches() {
    const std::string count = std::to_string(options_.micro_batches);
    if (options_.micro_batches == 1) return;
    Task& task = Add(TaskKind::kForward, options_.micro_batches == 2
                                             ? "micro-batch 2"
                                             : std::string("micro-batches 2 to ").append(count));
    micro_batches_ = LastId();
    for (size_t p = 0; p < layout_.parameters.size(); ++p) {
      task.reads.push_back(static_cast<int32_t>(p));
    }
    for (const Node& node : graph_.nodes) {
      task.gathers |= options_.world_size > 1 && node.signature.uses_replicas != 0;
    }
    for (int32_t earlier : task_of_instruction_) {
      if (result_.tasks[earlier].successors.empty()) After(earlier);
    }
  }

  // All ranks run what gathers in one order (core/exec/replicas.h).
  void AfterLastGather(int32_t k) {
    const std::vector<int32_t>& known = plan_.depends_on[k];
    const bool waits = std::find(known.begin(), known.end(), last_gather_) != known.end();
    if (last_gather_ != kNone && !waits) After(task_of_instruction_[last_gather_]);
    last_gather_ = k;
  }

  Task& AddTransfer(TransferKind kind, TransferData data, int32_t unit, std::string name) {
    Task& task = Add(TaskKind::kTransfer, std::move(name));
    task.info.lane = Lane::kIo;
    task.info.transfer = kind;
    task.data = data;
    if (unit == kNone) return task;
    const UnitLayout& layout = layout_.units[unit];
    task.info.unit = static_cast<uint32_t>(unit);
    task.info.priority = layout.priority;
    task.info.size_bytes = BytesOf(data, unit);
    task.tail = kind != TransferKind::kPull || !task_of_instruction_.empty();
    if (task.tail) task.info.needed_by = NeededBy(layout);
    return task;
  }

  uint64_t BytesOf(TransferData data, int32_t unit) const {
    if (options_.wire != nullptr && data == TransferData::kGradients) {
      return static_cast<uint64_t>(options_.wire->BytesOf(layout_, unit, options_.world_size));
    }
    const UnitLayout& layout = layout_.units[unit];
    return static_cast<uint64_t>(layout.count) *
           (data == TransferData::kParameters ? SizeOf(layout.gathered) : sizeof(float));
  }

  bool Packed() const { return options_.wire != nullptr && options_.wire->packed(); }

  // The first forward task that reads a parameter of the unit.
  uint32_t NeededBy(const UnitLayout& unit) const {
    uint32_t first = UINT32_MAX;
    for (const UnitSpan& span : unit.spans) first = std::min(first, FirstUse(span.parameter));
    return first;
  }
  uint32_t FirstUse(size_t position) const {
    return static_cast<uint32_t>(task_of_instruction_[UsersOf(position).front()]);
  }

  // At the begin of a step, for the rows that its batch reads.
  void AddRowPull(int32_t unit) {
    Task& task = AddTransfer(TransferKind::kPull, TransferData::kParameters, unit,
                             std::string("pull rows of ").append(NameOfUnit(unit)));
    task.opens_step = true;
    row_pulls_.emplace_back(unit, LastId());
  }

  void AddStatistics() {
    if (options_.own_pace) return;
    const int32_t maker = micro_batches_ != kNone ? micro_batches_ : LossTask();
    result_.tasks[maker].makes_statistics = options_.alone;
    if (options_.alone) return;
    Task& task = AddTransfer(TransferKind::kAllReduce, TransferData::kStatistics, kNone,
                             "transfer statistics");
    task.info.size_bytes = kStatisticsBytes;
    statistics_ = static_cast<int32_t>(task.info.id);
    After(maker);
  }

  int32_t LossTask() const {
    const NodeId node = graph_.values[graph_.loss].producer;
    int32_t k = 0;
    while (program_.instructions[k].node != node) ++k;
    return task_of_instruction_[k];
  }

  void AddLocalPipeline(int32_t position) {
    const TaskSpan whole{.parameter = position, .count = CountOf(position)};
    Add(TaskKind::kAccumulate, "accumulate " + NameOf(position)).spans = {whole};
    for (int32_t user : UsersOf(position)) After(task_of_instruction_[user]);
    int32_t last = LastId();
    for (size_t h = 0; h < options_.hooks.size(); ++h) {
      if (options_.hooks[h].stage != HookStage::kLocal) continue;
      AddHook(h, HookWork::kApply, NameOf(position)).spans = {whole};
      After(last);
      last = LastId();
    }
    sent_[position] = last;
    if (options_.alone) return;
    for (int32_t unit : layout_.units_of[position]) {
      if (--unit_waits_[unit] == 0) AddFirstStage(unit);
    }
  }

  void AddFirstStage(int32_t unit) {
    std::vector<int32_t> waits;
    for (const UnitSpan& span : layout_.units[unit].spans) waits.push_back(sent_[span.parameter]);
    if (options_.wire != nullptr) {
      AddWireHook(HookWork::kPack, unit).spans = SpansOf(unit, /*own_part=*/false);
      for (int32_t earlier : waits) After(earlier);
      waits = {LastId()};
    }
    const bool scattered = layout_.units[unit].stages != UnitStages::kAllReduce;
    const TransferKind kind = options_.served ? TransferKind::kPush
                              : Packed()      ? TransferKind::kAllGather
                              : scattered     ? TransferKind::kReduceScatter
                                              : TransferKind::kAllReduce;
    const char* const verb = kind == TransferKind::kPush            ? "push "
                             : kind == TransferKind::kReduceScatter ? "scatter "
                                                                    : "transfer ";
    AddTransfer(kind, TransferData::kGradients, unit, std::string(verb).append(NameOfUnit(unit)));
    unit_task_[unit] = LastId();
    for (int32_t earlier : waits) After(earlier);
  }

  Task& AddWireHook(HookWork work, int32_t unit) {
    const char* const verb = work == HookWork::kPack ? "pack " : "unpack ";
    Task& task = AddHook(static_cast<size_t>(options_.wire->hook), work,
                         std::string(verb).append(NameOfUnit(unit)));
    task.info.unit = static_cast<uint32_t>(unit);
    return task;
  }

  void AddUnpack(int32_t unit) {
    Task& task = AddWireHook(HookWork::kUnpack, unit);
    task.spans = SpansOf(unit, options_.sharded);
    task.blocks = Packed() ? options_.world_size : 1;
    task.info.needed_by = NeededBy(layout_.units[unit]);
    task.tail = true;
    After(unit_task_[unit]);
    unit_task_[unit] = LastId();
  }

  void AddGather(int32_t unit, TransferData data) {
    AddTransfer(TransferKind::kAllGather, data, unit,
                std::string("gather ").append(NameOfUnit(unit)));
  }

  Task& AddHook(size_t hook, HookWork work, const std::string& on) {
    const char* verb = work == HookWork::kObserve ? " observe " : " ";
    Task& task = Add(TaskKind::kHook, options_.hook_names[hook] + verb + on);
    task.hook = static_cast<int32_t>(hook);
    task.hook_work = work;
    return task;
  }

  // From here on everything waits for the network, so it comes last in sequence.
  void AddTail() {
    if (options_.served) return AddServedTail();
    for (size_t u = 0; u < layout_.units.size() && !options_.sharded && !options_.alone; ++u) {
      if (layout_.units[u].stages == UnitStages::kAllReduce || Packed()) continue;
      AddGather(static_cast<int32_t>(u), TransferData::kGradients);
      After(unit_task_[u]);
      unit_task_[u] = LastId();
    }
    for (size_t u = 0; u < layout_.units.size() && options_.wire != nullptr; ++u) {
      AddUnpack(static_cast<int32_t>(u));
    }
    MakeGroups();
    for (size_t h = 0; h < options_.hooks.size(); ++h) {
      if (options_.hooks[h].stage != HookStage::kReduced) continue;
      if (options_.hooks[h].scope == HookScope::kGlobal) AddObservation(h);
      for (Group& group : groups_) Step(group, AddHook(h, HookWork::kApply, group.name));
    }
    if (options_.gate == UpdateGate::kGlobal) {
      AddMeetingPoint(Add(TaskKind::kHook, "all gradients are there"));
    }
    for (Group& group : groups_)
      Step(group, Add(TaskKind::kUpdate, std::string("update ").append(group.name)));
    if (options_.sharded) AddGathersOfParameters();
  }

  // Of each unit, when what holds it is updated.
  void AddGathersOfParameters() {
    const std::vector<Group> updated = std::exchange(groups_, {});
    for (size_t u = 0; u < layout_.units.size(); ++u) {
      const auto unit = static_cast<int32_t>(u);
      AddGather(unit, TransferData::kParameters);
      for (int32_t earlier : updated[std::min(u, updated.size() - 1)].waits) After(earlier);
      AddUnitGroup(unit, {LastId()});
    }
  }

  // Servers update; the groups are there for what the next step waits for.
  void AddServedTail() {
    for (size_t u = 0; u < layout_.units.size(); ++u) {
      const auto unit = static_cast<int32_t>(u);
      if (RowsOf(unit) == 0) {
        AddTransfer(TransferKind::kPull, TransferData::kParameters, unit,
                    std::string("pull ").append(NameOfUnit(unit)));
        After(unit_task_[u]);
        unit_task_[u] = LastId();
      }
      AddUnitGroup(unit, {unit_task_[u]});
    }
  }

  void AddObservation(size_t hook) {
    for (Group& group : groups_) Step(group, AddHook(hook, HookWork::kObserve, group.name));
    if (options_.sharded) {
      Task& sum = AddTransfer(TransferKind::kAllReduce, TransferData::kObserved, kNone,
                              "transfer sums of " + options_.hook_names[hook]);
      sum.hook = static_cast<int32_t>(hook);
      sum.info.size_bytes = sizeof(float);
      AddMeetingPoint(sum);
    }
    Task& task = Add(TaskKind::kHook, options_.hook_names[hook] + " has observed all");
    task.hook = static_cast<int32_t>(hook);
    task.hook_work = HookWork::kAllObserved;
    AddMeetingPoint(task);
  }

  // `task`, made last, comes next in the group's chain.
  void Step(Group& group, Task& task) {
    task.spans = group.spans;
    task.info.unit = group.unit == kNone ? kNoUnit : static_cast<uint32_t>(group.unit);
    task.info.needed_by = NeededByGroup(group);
    task.tail = true;
    for (int32_t earlier : group.waits) After(earlier);
    group.waits = {LastId()};
  }

  // `task`, made last, comes next in the chains of all groups.
  void AddMeetingPoint(Task& task) {
    if (task.info.kind == TaskKind::kHook) task.hook_work = HookWork::kAllObserved;
    task.tail = true;
    for (const Group& group : groups_) {
      task.info.needed_by = std::min(task.info.needed_by, NeededByGroup(group));
    }
    for (int32_t earlier : WaitsOfAll()) After(earlier);
    for (Group& group : groups_) group.waits = {LastId()};
  }

  // What the next tasks of all groups wait for, each once.
  std::vector<int32_t> WaitsOfAll() const {
    std::vector<int32_t> waits;
    for (const Group& group : groups_) {
      waits.insert(waits.end(), group.waits.begin(), group.waits.end());
    }
    std::sort(waits.begin(), waits.end());
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    return waits;
  }

  uint32_t NeededByGroup(const Group& group) const {
    uint32_t first = UINT32_MAX;
    for (int32_t position : group.parameters) first = std::min(first, FirstUse(position));
    return first;
  }

  // On an accelerator, for which the host only queues work, one group of everything, if all updates
  // become ready at once or the device does nothing beside them: then more launches would let
  // nothing begin sooner. On a host forward tasks of the next step run between updates, each as
  // soon as those of its parameters are done; and with one rank an update of one parameter finds
  // more of it in a cache, behind the backward pass that makes the gradient or before the forward
  // pass that reads the value.
  void MakeGroups() {
    bool whole = options_.gate == UpdateGate::kTensor;
    bool all_wait = options_.gate == UpdateGate::kGlobal || options_.alone;
    for (const HookTraits& hook : options_.hooks) {
      if (hook.stage != HookStage::kReduced) continue;
      whole |= hook.scope == HookScope::kTensor;
      all_wait |= hook.scope == HookScope::kGlobal;
    }
    ENGINE_CHECK(!whole || !options_.sharded, "updates of whole parameters cannot be sharded");
    if (layout_.parameters.empty()) return;
    if (options_.accelerator && all_wait) return AddGroupOfAll();
    if (whole || options_.alone) return AddGroupsOfParameters();
    for (size_t u = 0; u < layout_.units.size(); ++u) {
      AddUnitGroup(static_cast<int32_t>(u), {statistics_, unit_task_[u]});
    }
  }

  void AddGroupsOfParameters() {
    for (size_t p = 0; p < layout_.parameters.size(); ++p) {
      const auto position = static_cast<int32_t>(p);
      groups_.push_back({.name = NameOf(p),
                         .spans = {{.parameter = position, .count = CountOf(p)}},
                         .parameters = {position},
                         .waits = Arrivals(p)});
    }
  }

  void AddGroupOfAll() {
    AddGroupsOfParameters();
    Group all{.name = std::to_string(groups_.size()) + " parameters", .waits = WaitsOfAll()};
    for (const Group& one : groups_) {
      all.parameters.push_back(one.parameters[0]);
      if (!options_.sharded) all.spans.push_back(one.spans[0]);
    }
    for (size_t u = 0; u < layout_.units.size() && options_.sharded; ++u) {
      const std::vector<TaskSpan> own = SpansOf(static_cast<int32_t>(u), /*own_part=*/true);
      all.spans.insert(all.spans.end(), own.begin(), own.end());
    }
    groups_.assign(1, std::move(all));
  }

  // What must be done before a parameter's gradient may be looked at, and its mean is known.
  std::vector<int32_t> Arrivals(size_t position) const {
    if (options_.alone) return {sent_[position]};
    std::vector<int32_t> arrivals = {statistics_};
    for (int32_t unit : layout_.units_of[position]) arrivals.push_back(unit_task_[unit]);
    return arrivals;
  }

  void AddUnitGroup(int32_t unit, std::vector<int32_t> waits) {
    Group group{.name = NameOfUnit(unit), .waits = std::move(waits), .unit = unit};
    group.spans = SpansOf(unit, options_.sharded);
    for (const UnitSpan& span : layout_.units[unit].spans) {
      group.parameters.push_back(static_cast<int32_t>(span.parameter));
    }
    groups_.push_back(std::move(group));
  }

  // The spans of a unit, or what this rank updates of them in a sharded run.
  std::vector<TaskSpan> SpansOf(int32_t unit, bool own_part) const {
    const UnitLayout& layout = layout_.units[unit];
    int64_t begin = layout.offset, end = layout.offset + layout.count;
    if (own_part) {
      const int64_t part = layout.count / options_.world_size;
      begin = layout.offset + options_.rank * part;
      end = begin + part;
    }
    std::vector<TaskSpan> spans;
    for (const UnitSpan& span : layout.spans) {
      const int64_t parameter = layout_.offset[layout_.parameters[span.parameter]];
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

  // Forward tasks wait for the last task of the step before that changes what they read.
  void CarryToNextStep() {
    std::vector<std::vector<int32_t>> last(layout_.parameters.size());
    for (const Group& group : groups_) {
      for (int32_t position : group.parameters) {
        last[position].insert(last[position].end(), group.waits.begin(), group.waits.end());
      }
    }
    for (size_t p = 0; p < last.size(); ++p) {
      for (int32_t task : last[p]) result_.tasks[task].completes.push_back(static_cast<int32_t>(p));
      for (const auto& [unit, pull] : row_pulls_) {
        if (layout_.units[unit].spans[0].parameter != p) continue;
        for (int32_t task : last[p]) Carry(task, pull);
      }
      for (int32_t user : UsersOf(p)) {
        if (user >= program_.forward_count) continue;
        Task& reader = result_.tasks[task_of_instruction_[user]];
        reader.reads.push_back(static_cast<int32_t>(p));
        for (int32_t task : last[p]) Carry(task, static_cast<int32_t>(reader.info.id));
      }
    }
  }

  // `reader` of the next step waits for `task`.
  void Carry(int32_t task, int32_t reader) {
    std::vector<uint32_t>& next = result_.tasks[task].next_successors;
    const auto id = static_cast<uint32_t>(reader);
    if (!next.empty() && next.back() == id) return;
    next.push_back(id);
    ++result_.tasks[reader].carried_count;
  }

  int32_t LastId() const { return static_cast<int32_t>(result_.tasks.size()) - 1; }

  const Graph& graph_;
  const Program& program_;
  const MemoryPlan& plan_;
  const FlatLayout& layout_;
  const TaskGraphOptions& options_;
  std::vector<int32_t> task_of_instruction_;
  int32_t last_gather_ = kNone;      // instruction of the last task that gathers
  std::vector<int32_t> sent_;        // per parameter: the last task before its transfer
  std::vector<int32_t> unit_waits_;  // per unit: spans not placed yet
  std::vector<int32_t> unit_task_;   // per unit: its last transfer of gradients
  std::vector<Group> groups_;
  std::vector<std::pair<int32_t, int32_t>> row_pulls_;  // units and tasks
  int32_t micro_batches_ = kNone;
  int32_t statistics_ = kNone;
  TaskGraph result_;
};

}  // namespace

TaskGraph BuildTaskGraph(const Graph& graph, const Program& program, const MemoryPlan& plan,
                         const FlatLayout& layout, const TaskGraphOptions& options) {
  return TaskGraphBuilder(graph, program, plan, layout, options).Run();
}

}  // namespace engine
