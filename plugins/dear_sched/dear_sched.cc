// dear_sched: splits the all-reduce of each group of gradients. The reduce-scatter overlaps with
// backward, in ready order; the all-gather with the next forward pass, in its order and one group
// ahead of it (Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained
// All-Reduce Pipelining", 2023). A step takes max(B, C/2) + max(F, C/2), and one group on each
// side. With servers pushes and pulls take the places of the two halves.
#include <cstdint>
#include <map>
#include <vector>

#include "kit/bucket_planner.h"
#include "kit/options.h"
#include "kit/scheduler.h"

namespace engine::dear_sched {
namespace {

constexpr uint32_t kStages = Bit(TransferKind::kReduceScatter) | Bit(TransferKind::kAllGather);

// With servers pushes go in ready order and wait for no pull, which is what
// kit::StaticTransferOrder asks for; pulls stand in a list of their own. The first group is asked
// for when it is ready, and each other one when a forward task is ready that waits for groups
// before it only, so none is held back for ever. Pulls with which a step opens are free: groups of
// the step before may still be held back for forward tasks that wait for them.
class DearScheduler final : public SchedulerBase {
 public:
  DearScheduler(Host& host, const Options& options) noexcept
      : host_(host), group_bytes_(options.Int("group_bytes")) {}

  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kStatic}; }

  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    served_ = model.served != 0;
    if (!served_ && (model.communicator.kinds & kStages) != kStages) {
      return Status::Error(StatusCode::kConfig,
                           "dear_sched needs a communicator with reduce-scatter and all-gather: "
                           "choose another communicator, or fifo_sched");
    }
    sharded_ = model.sharded != 0;
    // Else all forward tasks wait for all gathers, and none can be held back for a forward task.
    holds_back_ = !kit::SayIfAllWait(model, host_);
    return kit::PlanBuckets("dear_sched", model,
                            {.fuse_bytes = kit::BytesFor(model, group_bytes_, 4 << 20),
                             .stages = BucketStages::kReduceScatterAllGather},
                            sink);
  }

  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    return kit::NoThrow("dear_sched", [&] {
      held_for_.assign(tasks.size(), kit::kNoTask);
      compute_.Reset(tasks, kit::ComputeOrder{.sharded = sharded_});
      const kit::StaticTransferOrder order{.gathers_by_need = true};
      io_.Reset(tasks, order, [](const TaskInfo& task) {
        if (kit::IsOpeningPull(task)) return kit::Standing::kFree;
        return kit::IsPull(task) ? kit::Standing::kElsewhere : kit::Standing::kListed;
      });
      pulls_.Reset(tasks, order, [](const TaskInfo& task) {
        const bool listed = kit::IsPull(task) && !kit::IsOpeningPull(task);
        return listed ? kit::Standing::kListed : kit::Standing::kElsewhere;
      });
      if (holds_back_) FindReleases(tasks);
      Forget();
    });
  }

  void On(const SchedulerEvent& event) noexcept override {
    switch (event.kind) {
      case EventKind::kTaskReady:
        Take(event.task);
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
    if (lane == Lane::kIo && served_ && io_.HeadIsReady()) return kit::Run(io_.Pop());
    if (lane == Lane::kIo && held_list().HeadIsReady() && HeadIsReleased()) {
      const uint32_t task = held_list().Pop();
      if (held_list().AtBegin()) released_by_ = kit::kNoTask;
      return kit::Run(task);
    }
    const uint32_t task = lane == Lane::kIo ? io_.PopFree() : compute_.Pop();
    return task == kit::kNoTask ? kit::Hold() : kit::Run(task);
  }

 private:
  void Take(uint32_t task) noexcept {
    if (io_.Take(task) || pulls_.Take(task)) return;
    compute_.Insert(task);
    Release(task);
  }

  // The list with gathers, or pulls.
  kit::TransferList& held_list() noexcept { return served_ ? pulls_ : io_; }

  // Gathers with one `needed_by` are a group; each but the first is held back until the forward
  // task for which the group before it was needed is ready. That task stands earlier in the forward
  // pass than all that wait for this group, so it does not wait for it.
  void FindReleases(Array<const TaskInfo> tasks) {
    std::vector<const TaskInfo*> info_of(tasks.size());
    std::map<uint32_t, uint32_t> forward_at;  // by sequence
    for (const TaskInfo& task : tasks) {
      info_of[task.id] = &task;
      if (task.kind == TaskKind::kForward) forward_at[task.sequence] = task.id;
    }
    const TaskInfo* before = nullptr;
    for (uint32_t id : held_list().tasks()) {
      const TaskInfo* gather = info_of[id];
      if (!kit::IsGather(*gather) && !kit::IsPull(*gather)) continue;
      if (before) {
        held_for_[id] = before->needed_by == gather->needed_by
                            ? held_for_[before->id]
                            : forward_at.try_emplace(before->needed_by, kit::kNoTask).first->second;
      }
      before = gather;
    }
  }

  // A forward task is ready only after its gathers are done, which all stand before the head.
  void Release(uint32_t task) noexcept {
    const uint32_t head = held_list().head();
    if (head != kit::kNoTask && held_for_[head] == task) released_by_ = task;
  }
  bool HeadIsReleased() noexcept {
    const uint32_t needs = held_for_[held_list().head()];
    return needs == kit::kNoTask || needs == released_by_ || flushing_;
  }

  void Forget() noexcept {
    compute_.Clear();
    io_.Clear();
    pulls_.Clear();
    released_by_ = kit::kNoTask;
    flushing_ = false;
  }

  Host& host_;
  const int64_t group_bytes_;
  bool sharded_ = false;
  bool served_ = false;
  bool holds_back_ = false;
  std::vector<uint32_t> held_for_;  // by task: the forward task that a gather waits for
  kit::ReadySet compute_;
  kit::TransferList io_, pulls_;
  uint32_t released_by_ = kit::kNoTask;  // the last such task of this pass that became ready
  bool flushing_ = false;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kScheduler, "dear_sched", "1.2.0",
    "reduce-scatters gradients during backward, gathers during the next forward pass",
    kit::Create<DearScheduler>,
    std::array{kit::IntOption("group_bytes", "-1", kit::kByDevice, 1 << 30,
                              "gradients that become ready one after another are a group as "
                              "soon as they are so many bytes; 0: each alone; -1: 4 MiB, on "
                              "accelerators 32 MiB")});

}  // namespace engine::dear_sched
