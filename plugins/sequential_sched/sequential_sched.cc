// sequential_sched: forward, backward, then every transfer, then the next step. Nothing overlaps:
// a step takes F + B + C. The baseline of every comparison and the oracle of every parity test.
// With servers everything is pushed, then everything is pulled: F + B + C of each direction.
#include <cstdint>
#include <vector>

#include "kit/bucket_planner.h"
#include "kit/scheduler.h"

namespace engine::sequential_sched {
namespace {

// So big that the start of a transfer costs little beside its bytes: a baseline that pays for each
// small gradient alone would flatter the others.
constexpr int64_t kHostBucketBytes = 4 << 20;

// What may come after transfers.
bool IsTail(const TaskInfo& task) noexcept {
  return kit::IsTail(task) || kit::IsPack(task);
}

// That first, so that forward tasks, which wait for it, are never in front of it; else the order of a
// single thread.
struct TailFirst {
  bool operator()(const TaskInfo& a, const TaskInfo& b) const noexcept {
    if (IsTail(a) != IsTail(b)) return IsTail(a);
    return kit::BySequence()(a, b);
  }
};

// Pulls stand behind all pushes and wait for their ends, so no push waits for a pull of its step:
// kit::StaticTransferOrder has the argument why that is enough. Pulls with which a step opens are
// free, because those that close the step before may not be done yet.
class SequentialScheduler final : public SchedulerBase {
 public:
  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kStatic}; }

  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    const int64_t fuse_bytes = kit::BytesFor(model, kit::kByDevice, kHostBucketBytes);
    return kit::PlanBuckets("sequential_sched", model, {.fuse_bytes = fuse_bytes}, sink);
  }

  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    return kit::NoThrow("sequential_sched", [&] {
      tasks_.assign(tasks.size(), {});
      tail_count_ = 0;
      for (const TaskInfo& task : tasks) {
        const bool opens = kit::IsOpeningPull(task);
        const bool tail = !opens && (task.lane == Lane::kIo || IsTail(task));
        tasks_[task.id] = {.lane = task.lane,
                           .is_forward = task.kind == TaskKind::kForward,
                           .is_tail = tail,
                           .is_pull = kit::IsPull(task)};
        tail_count_ += tail;
      }
      compute_.Reset(tasks, TailFirst());
      io_.Reset(tasks, kit::StaticTransferOrder(), [](const TaskInfo& task) {
        return kit::IsOpeningPull(task) ? kit::Standing::kFree : kit::Standing::kListed;
      });
      Forget();
    });
  }

  void On(const SchedulerEvent& event) noexcept override {
    switch (event.kind) {
      case EventKind::kTaskReady:
        if (!io_.Take(event.task)) compute_.Insert(event.task);
        break;
      case EventKind::kTaskDone:
        if (tasks_[event.task].is_tail) --tail_left_;
        if (IsFirstStage(event.task)) --first_stages_;
        break;
      case EventKind::kBackwardEnd:
        tail_left_ += tail_count_;
        transfers_may_start_ = tail_count_ > 0;
        break;
      case EventKind::kError:
        Forget();
        break;
      case EventKind::kStepBegin:
      case EventKind::kTaskStarted:
      case EventKind::kFlush:  // holds nothing but forward tasks
        break;
    }
  }

  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo) return NextTransfer();
    const uint32_t first = compute_.First();
    if (first == kit::kNoTask || (tail_left_ > 0 && tasks_[first].is_forward)) return kit::Hold();
    return kit::Run(compute_.Pop());
  }

 private:
  struct Task {
    Lane lane = Lane::kCompute;
    bool is_forward = false;
    bool is_tail = false;  // a transfer after the end of backward, or after one
    bool is_pull = false;
  };

  bool IsFirstStage(uint32_t task) const noexcept {
    return tasks_[task].lane == Lane::kIo && !tasks_[task].is_pull;
  }

  Action NextTransfer() noexcept {
    const uint32_t opening = io_.PopFree();
    if (opening != kit::kNoTask) return kit::Run(opening);
    if (!transfers_may_start_ || !io_.HeadIsReady()) return kit::Hold();
    if (tasks_[io_.head()].is_pull && first_stages_ > 0) return kit::Hold();
    const uint32_t task = io_.Pop();
    if (io_.AtBegin()) transfers_may_start_ = false;  // that was the last of this step
    if (IsFirstStage(task)) ++first_stages_;
    return kit::Run(task);
  }

  void Forget() noexcept {
    compute_.Clear();
    io_.Clear();
    tail_left_ = 0;
    first_stages_ = 0;
    transfers_may_start_ = false;
  }

  std::vector<Task> tasks_;
  int64_t tail_count_ = 0;  // tasks
  kit::ReadySet compute_;
  kit::TransferList io_;
  // Tasks of the step whose backward has ended that are not done. Until it has ended, less than 0
  // where nothing is sent: by those that are.
  int64_t tail_left_ = 0;
  size_t first_stages_ = 0;  // under way: transfers other than pulls
  bool transfers_may_start_ = false;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    kit::DescribePlugin(PluginKind::kScheduler, "sequential_sched", "1.2.0",
                        "overlaps nothing: transfers after backward, the next step after them",
                        kit::Create<SequentialScheduler>);

}  // namespace engine::sequential_sched
