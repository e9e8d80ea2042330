// priority_sched: sends first what the next forward pass needs first, in slices, with a bound on
// the bytes under way. A step takes max(F + B, C), one slice, and what is both ready last and
// needed first.
#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "kit/bucket_planner.h"
#include "kit/options.h"
#include "kit/scheduler.h"

namespace engine::priority_sched {
namespace {

// Statistics and sums of hooks first: they are tiny, and all updates wait for them. Then by need,
// then in ready order. `all_wait`: an update waits for all gradients, so that until they are there
// no gradient is needed sooner than another. Pulls before pushes: they only ask.
struct MostUrgentFirst {
  bool all_wait = false;
  bool operator()(const TaskInfo& a, const TaskInfo& b) const noexcept { return Key(a) < Key(b); }
  std::tuple<bool, bool, uint32_t, uint32_t, uint32_t> Key(const TaskInfo& task) const noexcept {
    const bool by_need = !all_wait || kit::IsGather(task);
    return {task.bucket != UINT32_MAX, !kit::IsPull(task), by_need ? task.needed_by : 0,
            task.sequence, task.id};
  }
};

// With servers credit is for pushes. A pull takes none and is started as soon as it is ready: until
// other ranks have pushed it costs nothing, then the other direction of the link, and by
// Transfer::priority the server sends first what is needed first. If pulls took credit, each rank
// could spend all of it on pulls of buckets for which another rank has no credit left to push, for
// the same reason. So pushes wait for the ends of pushes only, which is all that
// kit::StaticTransferOrder asks for.
class PriorityScheduler final : public SchedulerBase {
 public:
  PriorityScheduler(Host& host, const Options& options) noexcept
      : host_(host),
        fuse_bytes_(options.Int("fuse_bytes")),
        slice_bytes_(options.Int("slice_bytes")),
        credit_option_(options.Int("credit_bytes")) {}

  // What is ready when credit comes back depends on when transfers end.
  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kLeader}; }

  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    all_wait_ = model.gate == UpdateGate::kGlobal && model.served == 0;
    sharded_ = model.sharded != 0;
    const bool by_need = !kit::SayIfAllWait(model, host_);
    // Without a network an urgent gradient waits for little, and each transfer wakes threads on the
    // cores that compute.
    const int64_t slice = host_.rank_info().one_host != 0 ? 1 << 20 : 256 << 10;
    const int64_t credit = host_.rank_info().one_host != 0 ? 4 << 20 : 512 << 10;
    credit_bytes_ = static_cast<uint64_t>(
        kit::BytesFor(model, credit_option_, credit, 4 * kit::kAcceleratorBucketBytes));
    return kit::PlanBuckets("priority_sched", model,
                            {.fuse_bytes = kit::BytesFor(model, fuse_bytes_, 64 << 10),
                             .slice_bytes = kit::BytesFor(model, slice_bytes_, slice),
                             .by_need = by_need},
                            sink);
  }

  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    return kit::NoThrow("priority_sched", [&] {
      tasks_.assign(tasks.size(), {});
      for (const TaskInfo& task : tasks) {
        const bool takes_credit = task.bucket != UINT32_MAX && !kit::IsPull(task);
        tasks_[task.id] = {task.lane, takes_credit ? task.size_bytes : 0};
      }
      compute_.Reset(tasks, kit::ComputeOrder{.sharded = sharded_});
      io_.Reset(tasks, MostUrgentFirst{.all_wait = all_wait_});
      used_bytes_ = 0;
    });
  }

  void On(const SchedulerEvent& event) noexcept override {
    switch (event.kind) {
      case EventKind::kTaskReady:
        (tasks_[event.task].lane == Lane::kIo ? io_ : compute_).Insert(event.task);
        break;
      case EventKind::kTaskStarted:
        Start(event.task);
        break;
      case EventKind::kTaskDone:
        // What ends after kError is not counted any more. Compute tasks take no credit.
        used_bytes_ -= std::min(used_bytes_, tasks_[event.task].size_bytes);
        break;
      case EventKind::kError:
        compute_.Clear();
        io_.Clear();
        used_bytes_ = 0;
        break;
      case EventKind::kStepBegin:
      case EventKind::kBackwardEnd:
      case EventKind::kFlush:  // holds nothing but for credit
        break;
    }
  }

  // A smaller transfer behind the head never goes first, although it may fit: a stream of small
  // ones would keep the head waiting.
  Action Next(Lane lane) noexcept override {
    const uint32_t task = lane == Lane::kIo ? io_.First() : compute_.Pop();
    if (task == kit::kNoTask) return kit::Hold();
    if (lane == Lane::kIo) {
      if (!Fits(tasks_[task].size_bytes)) return kit::Hold();
      Start(task);
    }
    return kit::Run(task);
  }

 private:
  struct Task {
    Lane lane = Lane::kCompute;
    uint64_t size_bytes = 0;  // that count against the credit
  };

  // One that is larger than the credit goes alone.
  bool Fits(uint64_t size_bytes) const noexcept {
    return size_bytes == 0 || used_bytes_ == 0 || used_bytes_ + size_bytes <= credit_bytes_;
  }
  void Start(uint32_t transfer) noexcept {
    io_.Erase(transfer);
    used_bytes_ += tasks_[transfer].size_bytes;
  }

  Host& host_;
  const int64_t fuse_bytes_, slice_bytes_, credit_option_;
  uint64_t credit_bytes_ = 0;
  bool all_wait_ = false;
  bool sharded_ = false;
  std::vector<Task> tasks_;
  kit::ReadySet compute_, io_;
  uint64_t used_bytes_ = 0;  // of transfers that were started and are not done
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kScheduler, "priority_sched", "2.3.0",
    "sends first what the next forward pass needs first, in slices, few at a time",
    kit::Create<PriorityScheduler>,
    std::array{
        kit::IntOption("slice_bytes", "-1", kit::kByDevice, 1 << 30,
                       "larger gradients travel in slices of about this size; 0: in one piece; "
                       "-1: 256 KiB, within one host 1 MiB, on accelerators 32 MiB"),
        kit::IntOption("fuse_bytes", "-1", kit::kByDevice, 1 << 30,
                       "gradients that become ready one after another travel together until "
                       "they are so many bytes; 0: each alone; -1: 64 KiB, on accelerators 32 MiB"),
        kit::IntOption(
            "credit_bytes", "-1", kit::kByDevice, 1 << 30,
            "bytes under way at once, for which an urgent gradient waits; 0: one transfer; "
            "-1: 512 KiB, within one host 4 MiB, on accelerators 128 MiB")});

}  // namespace engine::priority_sched
