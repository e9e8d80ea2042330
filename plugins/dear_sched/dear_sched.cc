// dear_sched: splits the all-reduce of each group of gradients. The reduce-scatter overlaps with
// backward, in ready order; the all-gather with the next forward pass, in its order and one group
// ahead of it (Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained
// All-Reduce Pipelining", 2023). A step takes max(B, C/2) + max(F, C/2), and one group on each
// side.
#include <cstdint>
#include <map>
#include <vector>

#include "engine/plugin.h"
#include "engine/scheduler_kit.h"
#include "engine/unit_planner.h"

namespace engine::dear_sched {
namespace {

constexpr uint32_t kStages = Bit(TransferKind::kReduceScatter) | Bit(TransferKind::kAllGather);

class DearScheduler final : public Scheduler {
 public:
  DearScheduler(Host& host, const Options& options) noexcept
      : host_(host), group_bytes_(options.Int("group_bytes")) {}

  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kStatic}; }

  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    if ((model.communicator.kinds & kStages) != kStages) {
      return Status::Error(StatusCode::kConfig,
                           "dear_sched needs a communicator with reduce-scatter and all-gather: "
                           "choose another communicator, or fifo_sched");
    }
    sharded_ = model.sharded != 0;
    // Else all forward tasks wait for all gathers, and none can be held back for a forward task.
    holds_back_ = !kit::SayIfAllWait(model, host_);
    return kit::PlanUnits(
        "dear_sched", model,
        {.fuse_bytes = group_bytes_, .stages = UnitStages::kReduceScatterAllGather}, sink);
  }

  Status Begin(std::span<const TaskInfo> tasks) noexcept override {
    return kit::NoThrow("dear_sched", [&] {
      tasks_.assign(tasks.size(), {});
      for (const TaskInfo& task : tasks) tasks_[task.id].lane = task.lane;
      compute_.Reset(tasks, kit::ComputeOrder{.sharded = sharded_});
      io_.Reset(tasks, kit::StaticTransferOrder{.gathers_by_need = true});
      if (holds_back_) FindReleases(tasks);
      Forget();
    });
  }

  void On(const SchedulerEvent& event) noexcept override {
    switch (event.kind) {
      case EventKind::kTaskReady:
        if (tasks_[event.task].lane == Lane::kIo) {
          io_.MarkReady(event.task);
        } else {
          compute_.Insert(event.task);
          Release(event.task);
        }
        break;
      case EventKind::kStepBegin:
        flushing_ = false;
        break;
      case EventKind::kFlush:
        flushing_ = true;
        break;
      case EventKind::kError:
        Forget();
        break;
      case EventKind::kTaskStarted:
      case EventKind::kTaskDone:
      case EventKind::kBackwardEnd:
        break;
    }
  }

  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo) {
      if (!io_.HeadIsReady() || !HeadIsReleased()) return kit::Hold();
      const uint32_t task = io_.Pop();
      if (io_.AtBegin()) released_by_ = kit::kNoTask;
      return kit::Run(task);
    }
    const uint32_t task = compute_.Pop();
    return task == kit::kNoTask ? kit::Hold() : kit::Run(task);
  }

 private:
  struct Task {
    Lane lane = Lane::kCompute;
    uint32_t released_by = kit::kNoTask;  // the forward task that a gather is held back for
  };

  // Gathers with one `needed_by` are a group; each but the first is held back until the forward
  // task for which the group before it was needed is ready. That task stands earlier in the forward
  // pass than all that wait for this group, so it does not wait for it.
  void FindReleases(std::span<const TaskInfo> tasks) {
    std::vector<const TaskInfo*> info_of(tasks.size());
    std::map<uint32_t, uint32_t> forward_at;  // by sequence
    for (const TaskInfo& task : tasks) {
      info_of[task.id] = &task;
      if (task.kind == TaskKind::kForward) forward_at[task.sequence] = task.id;
    }
    const TaskInfo* before = nullptr;
    for (uint32_t id : io_.tasks()) {
      const TaskInfo* gather = info_of[id];
      if (!kit::IsGather(*gather)) continue;
      if (before) {
        tasks_[id].released_by =
            before->needed_by == gather->needed_by
                ? tasks_[before->id].released_by
                : forward_at.try_emplace(before->needed_by, kit::kNoTask).first->second;
      }
      before = gather;
    }
  }

  // A forward task is ready only after its gathers are done, which all stand before the head.
  void Release(uint32_t task) noexcept {
    if (io_.head() != kit::kNoTask && tasks_[io_.head()].released_by == task) released_by_ = task;
  }
  bool HeadIsReleased() const noexcept {
    const uint32_t needs = tasks_[io_.head()].released_by;
    return needs == kit::kNoTask || needs == released_by_ || flushing_;
  }

  void Forget() noexcept {
    compute_.Clear();
    io_.Clear();
    released_by_ = kit::kNoTask;
    flushing_ = false;
  }

  Host& host_;
  const int64_t group_bytes_;
  bool sharded_ = false;
  bool holds_back_ = false;
  std::vector<Task> tasks_;
  kit::ReadySet compute_;
  kit::TransferList io_;
  uint32_t released_by_ = kit::kNoTask;  // the last such task of this pass that became ready
  bool flushing_ = false;
};

Status Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::Make<DearScheduler>(out, host, options);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "dear_sched",
     .version = "1.0.0",
     .kind = PluginKind::kScheduler,
     .doc = "reduce-scatters gradients during backward, gathers during the next forward pass",
     .create = Create},
    NoOps(),
    std::array{OptionSpec{.name = "group_bytes",
                          .type = OptionType::kInt,
                          .default_value = "4194304",
                          .min = 0,
                          .max = 1 << 30,
                          .doc = "gradients that become ready one after another are a group as "
                                 "soon as they are this many bytes; 0: each alone"}});

}  // namespace engine::dear_sched
