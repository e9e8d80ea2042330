#include "core/exec/task_graph.h"

namespace engine {
namespace {

class TaskGraphBuilder {
 public:
  TaskGraphBuilder(const Graph& graph, const Program& program, const MemoryPlan& plan,
                   const FlatLayout& layout, const std::vector<HookTraits>& hooks,
                   const std::vector<std::string>& hook_names)
      : graph_(graph),
        program_(program),
        plan_(plan),
        layout_(layout),
        hooks_(hooks),
        hook_names_(hook_names),
        sent_(layout.parameters.size(), kNone),
        unit_waits_(layout.units.size()),
        unit_task_(layout.units.size(), kNone) {}

  TaskGraph Run() {
    for (size_t u = 0; u < layout_.units.size(); ++u) {
      unit_waits_[u] = static_cast<int32_t>(layout_.units[u].spans.size());
    }
    const auto count = static_cast<int32_t>(program_.instructions.size());
    for (int32_t k = 0; k < count; ++k) {
      AddInstruction(k);
      if (k + 1 == program_.forward_count) AddStatistics();
      for (size_t p = 0; p < layout_.parameters.size(); ++p) {
        if (UsersOf(p).back() == k) AddLocalPipeline(static_cast<int32_t>(p));
      }
    }
    AddReducedPipelines();
    for (Task& task : result_.tasks) {
      task.info.name = task.name;
      result_.infos.push_back(task.info);
    }
    return std::move(result_);
  }

 private:
  const std::vector<int32_t>& UsersOf(size_t position) const {
    return program_.users_of_parameter[layout_.parameters[position]];
  }
  const std::string& NameOf(size_t position) const {
    return graph_.parameters[layout_.parameters[position]].name;
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
    task.info.priority = node.priority;
    task_of_instruction_.push_back(static_cast<int32_t>(task.info.id));
    for (int32_t earlier : plan_.depends_on[k]) After(task_of_instruction_[earlier]);
  }

  // The loss op is the last forward instruction that anything depends on; waiting for all of them
  // is as early.
  void AddStatistics() {
    Task& task = Add(TaskKind::kTransfer, "transfer statistics");
    task.info.lane = Lane::kIo;
    task.info.size_bytes = 4 * sizeof(float);
    task.info.unit = kStatisticsUnit;
    statistics_ = static_cast<int32_t>(task.info.id);
    for (int32_t k = 0; k < program_.forward_count; ++k) {
      if (graph_.nodes[program_.instructions[k].node].outputs[0] == graph_.loss) {
        After(task_of_instruction_[k]);
      }
    }
  }

  void AddLocalPipeline(int32_t position) {
    Add(TaskKind::kAccumulate, "accumulate " + NameOf(position)).parameter = position;
    for (int32_t user : UsersOf(position)) After(task_of_instruction_[user]);
    int32_t last = LastId();
    for (size_t h = 0; h < hooks_.size(); ++h) {
      if (hooks_[h].stage != HookStage::kLocal) continue;
      AddHook(static_cast<int32_t>(h), position, HookWork::kApply);
      After(last);
      last = LastId();
    }
    sent_[position] = last;
    for (int32_t unit : layout_.units_of[position]) {
      if (--unit_waits_[unit] == 0) AddTransfer(unit);
    }
  }

  void AddTransfer(int32_t unit) {
    const UnitLayout& layout = layout_.units[unit];
    std::string name = "transfer " + NameOf(layout.spans[0].parameter);
    if (layout.spans.size() > 1)
      name += " and " + std::to_string(layout.spans.size() - 1) + " more";
    Task& task = Add(TaskKind::kTransfer, std::move(name));
    task.info.lane = Lane::kIo;
    task.info.priority = layout.priority;
    task.info.unit = static_cast<uint32_t>(unit);
    task.info.size_bytes = static_cast<uint64_t>(layout.count) * sizeof(float);
    unit_task_[unit] = static_cast<int32_t>(task.info.id);
    for (const UnitSpan& span : layout.spans) After(sent_[span.parameter]);
  }

  void AddHook(int32_t hook, int32_t position, HookWork work) {
    const char* verb = work == HookWork::kObserve ? " observe " : " ";
    Task& task = Add(TaskKind::kHook, hook_names_[hook] + verb + NameOf(position));
    task.hook = hook;
    task.parameter = position;
    task.hook_work = work;
  }

  // From here on everything waits for the network, so it comes last in sequence.
  void AddReducedPipelines() {
    const size_t count = layout_.parameters.size();
    std::vector<std::vector<int32_t>> waits(count);  // what the next task of a parameter waits for
    for (size_t p = 0; p < count; ++p) {
      waits[p].push_back(statistics_);
      for (int32_t unit : layout_.units_of[p]) waits[p].push_back(unit_task_[unit]);
    }
    const auto step = [&](size_t p, auto&& add) {
      add();
      for (int32_t earlier : waits[p]) After(earlier);
      waits[p] = {LastId()};
    };
    for (size_t h = 0; h < hooks_.size(); ++h) {
      if (hooks_[h].stage != HookStage::kReduced) continue;
      const auto hook = static_cast<int32_t>(h);
      if (hooks_[h].scope == HookScope::kGlobal) {
        for (size_t p = 0; p < count; ++p) {
          step(p, [&] { AddHook(hook, static_cast<int32_t>(p), HookWork::kObserve); });
        }
        Task& task = Add(TaskKind::kHook, hook_names_[h] + " has observed all");
        task.hook = hook;
        task.hook_work = HookWork::kAllObserved;
        for (size_t p = 0; p < count; ++p) After(waits[p][0]);
        for (size_t p = 0; p < count; ++p) waits[p] = {LastId()};
      }
      for (size_t p = 0; p < count; ++p) {
        step(p, [&] { AddHook(hook, static_cast<int32_t>(p), HookWork::kApply); });
      }
    }
    for (size_t p = 0; p < count; ++p) {
      step(p, [&] {
        Add(TaskKind::kUpdate, "update " + NameOf(p)).parameter = static_cast<int32_t>(p);
      });
    }
  }

  int32_t LastId() const { return static_cast<int32_t>(result_.tasks.size()) - 1; }

  const Graph& graph_;
  const Program& program_;
  const MemoryPlan& plan_;
  const FlatLayout& layout_;
  const std::vector<HookTraits>& hooks_;
  const std::vector<std::string>& hook_names_;
  std::vector<int32_t> task_of_instruction_;
  std::vector<int32_t> sent_;        // per parameter: the last task before its transfer
  std::vector<int32_t> unit_waits_;  // per unit: spans not placed yet
  std::vector<int32_t> unit_task_;
  int32_t statistics_ = kNone;
  TaskGraph result_;
};

}  // namespace

TaskGraph BuildTaskGraph(const Graph& graph, const Program& program, const MemoryPlan& plan,
                         const FlatLayout& layout, const std::vector<HookTraits>& hooks,
                         const std::vector<std::string>& hook_names) {
  return TaskGraphBuilder(graph, program, plan, layout, hooks, hook_names).Run();
}

}  // namespace engine
