// Parts to build a scheduler from. Compiled into the plugin that includes it and no part of the
// ABI: a scheduler may as well be written without it.
//
// Everything here allocates in Reset only, so On and Next of a scheduler made of these parts never
// do. What Reset throws, NoThrow catches. bucket_planner.h has the part for Plan.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/host.h"
#include "engine/scheduler.h"
#include "kit/create.h"

namespace engine::kit {

constexpr uint32_t kNoTask = UINT32_MAX;

inline Action Run(uint32_t task) noexcept {
  return {.kind = ActionKind::kRun, .task = task};
}
inline Action Hold() noexcept {
  return {};
}

// Runs `body`, which may run out of memory, where no exception may pass. Without exceptions
// (-fno-exceptions) that ends the process.
template <typename Body>
Status NoThrow([[maybe_unused]] const char* plugin, Body&& body) noexcept {
#ifdef __cpp_exceptions
  try {
    std::forward<Body>(body)();
  } catch (...) {
    return Status::Error(StatusCode::kResourceExhausted, "%s has no memory to order the step",
                         plugin);
  }
#else
  std::forward<Body>(body)();
#endif
  return {};
}

// Whether every parameter of the next forward pass waits for every gradient, so that no gradient is
// needed sooner than another. Rank 0 says so, for schedulers that promise more: call it once. Never
// with servers: they update each bucket by itself.
inline bool SayIfAllWait(const ModelInfo& model, Host& host) noexcept {
  const bool all_wait =
      model.gate == UpdateGate::kGlobal && model.sharded == 0 && model.served == 0;
  if (all_wait && model.world_size > 1 && host.rank_info().rank == 0) {
    host.Log(LogLevel::kWarning,
             "updates wait for all gradients: transfers overlap with backward only; see "
             "train.shard_optimizer");
  }
  return all_wait;
}

// The second stage of a bucket.
inline bool IsGather(const TaskInfo& task) noexcept {
  return task.kind == TaskKind::kTransfer && task.bucket != UINT32_MAX &&
         task.transfer == TransferKind::kAllGather;
}

// The second stage of a bucket that servers update.
inline bool IsPull(const TaskInfo& task) noexcept {
  return task.kind == TaskKind::kTransfer && task.transfer == TransferKind::kPull;
}

// A pull with which a step begins: rows that its batch reads. What has been pushed in the step
// before is all that it waits for.
inline bool IsOpeningPull(const TaskInfo& task) noexcept {
  return IsPull(task) && task.needed_by == UINT32_MAX;
}

// Compute tasks that come after a transfer: reduced hooks and updates.
inline bool IsTail(const TaskInfo& task) noexcept {
  return task.kind == TaskKind::kUpdate ||
         (task.kind == TaskKind::kHook && task.needed_by != UINT32_MAX);
}

// Packs a bucket for its transfer (wire_format.h). Where that needs the statistics of the step it
// waits for their transfer, and may become ready after kBackwardEnd.
inline bool IsPack(const TaskInfo& task) noexcept {
  return task.kind == TaskKind::kHook && task.bucket != UINT32_MAX && task.needed_by == UINT32_MAX;
}

// ---- Fixed orders: whether `a` comes before `b`. All are total, given that ids differ.

struct BySequence {
  bool operator()(const TaskInfo& a, const TaskInfo& b) const noexcept {
    return std::pair(a.sequence, a.id) < std::pair(b.sequence, b.id);
  }
};

// An order of transfers that all ranks can keep without messages: everything but gathers in the
// order of a single thread, which is that in which gradients become ready; then gathers, in the
// same order or (`gathers_by_need`) in that of the next forward pass.
//
// Why a list in this order cannot deadlock although nothing overtakes its head: no transfer waits
// for one that stands later in it.
//  * The statistics wait for forward tasks, the first stage of a bucket (all-reduce, reduce-scatter)
//    for backward, accumulate and local hook tasks, and perhaps, in IsPack, for the statistics, which
//    have a smaller sequence number: for no other transfer of their step.
//  * A sum of what hooks observed waits for the statistics, for all first stages and for sums of
//    earlier hooks. All have smaller sequence numbers. It waits for no gather: sums exist in
//    sharded runs only, where gathers carry parameters that were updated after all sums.
//  * A gather waits for first stages, the statistics and sums. All stand before the first gather.
//  * Across steps: forward tasks of step t+1 wait for transfers of step t, all of which stand
//    before those of step t+1. A transfer of step t never waits for anything of step t+1; a
//    scheduler that holds one back until a forward task of t+1 is ready must choose one that does
//    not wait for it (dear_sched).
// And a compute task that the head waits for is never held back for a transfer behind the head.
//
// With servers (ModelInfo::served) there are pushes in place of first stages and pulls in place of
// gathers, and no order among ranks is needed; but a pull waits at the server for the pushes of
// other ranks. Why no rank can wait for another for ever, if it keeps one rule: **no push ever
// waits for a pull of the same step, neither in a list nor for credit.**
//  * A push ends when servers have the bytes, whatever other ranks do. So, with that rule, the
//    pushes of a step wait for compute tasks of the step and for each other only.
//  * Those compute tasks wait for pulls of the step before (of the same step, if it opens with
//    pulls of rows, which wait for pushes of the step before).
//  * By induction over steps: when all ranks have done the pushes of step t-1, servers release the
//    pulls of t-1 and of the begin of t, so all ranks compute step t, and so do its pushes.
//  * The statistics wait for forward tasks of all ranks, so they are done as well.
// Pulls with which a step opens come first in this order, so that nothing of their step stands
// before them.
// A pull that is held back until a forward task is ready must not be one that this task waits for.
struct StaticTransferOrder {
  bool gathers_by_need = false;
  bool operator()(const TaskInfo& a, const TaskInfo& b) const noexcept { return Key(a) < Key(b); }
  std::tuple<int, uint32_t, uint32_t, uint32_t> Key(const TaskInfo& task) const noexcept {
    const bool second = !IsOpeningPull(task) && (IsGather(task) || IsPull(task));
    return {IsOpeningPull(task) ? 0
            : second            ? 2
                                : 1,
            second && gathers_by_need ? task.needed_by : 0, task.sequence, task.id};
  }
};

// An order for the compute lane that lets gradients leave soonest and the next forward pass begin
// soonest:
//  1. accumulations and local hooks: they are short, and a gradient waits behind them to travel;
//  2. then larger priority;
//  3. then backward and forward before reduced hooks and updates: nothing of this step waits for
//     those, while each backward task that they delay delays every gradient behind it. Between them
//     and forward tasks of the next step it makes no difference, unless a transfer waits for them
//     (`sharded`: the gather of what was updated); then they come first, so that the link is busy
//     while the forward task runs;
//  4. among reduced hooks and updates what the next forward pass needs first;
//  5. then the order of a single thread.
// It depends on constants of the plan only, so it is the same in every step and on every rank.
struct ComputeOrder {
  bool sharded = false;
  bool operator()(const TaskInfo& a, const TaskInfo& b) const noexcept { return Key(a) < Key(b); }
  std::tuple<bool, int64_t, int, uint32_t, uint32_t, uint32_t> Key(
      const TaskInfo& task) const noexcept {
    const bool tail = IsTail(task);
    const bool urgent =
        task.kind == TaskKind::kAccumulate || (task.kind == TaskKind::kHook && !tail);
    const int phase = tail ? 1 : sharded && task.kind == TaskKind::kForward ? 2 : 0;
    return {!urgent, -int64_t{task.priority}, phase, tail ? task.needed_by : 0, task.sequence,
            task.id};
  }
};

// ---- Ready tasks

// A queue. A task is ready at most once at a time, so one slot per task is enough.
class ReadyQueue {
 public:
  void Reset(size_t task_count) {
    slots_.assign(task_count, 0);
    Clear();
  }
  void Clear() noexcept { head_ = size_ = 0; }
  void Push(uint32_t task) noexcept {
    ENGINE_CHECK(size_ < slots_.size(), "task %u was offered twice", task);
    const size_t tail = head_ + size_++;
    slots_[tail < slots_.size() ? tail : tail - slots_.size()] = task;
  }
  // The one that came first, or kNoTask.
  uint32_t Pop() noexcept {
    if (size_ == 0) return kNoTask;
    const uint32_t task = slots_[head_];
    if (++head_ == slots_.size()) head_ = 0;
    --size_;
    return task;
  }

 private:
  std::vector<uint32_t> slots_;
  size_t head_ = 0;
  size_t size_ = 0;
};

// A set in a fixed order. One bit per task, by its position in the order: a task can be taken out
// from anywhere, and the first is found by looking at 64 tasks at once.
class ReadySet {
 public:
  // Empties the set; `before` is a total order of `tasks`.
  template <typename Before>
  void Reset(Array<const TaskInfo> tasks, Before before) {
    std::vector<TaskInfo> ordered(tasks.begin(), tasks.end());
    std::sort(ordered.begin(), ordered.end(), before);
    task_at_.resize(tasks.size());
    position_of_.resize(tasks.size());
    for (uint32_t position = 0; position < ordered.size(); ++position) {
      task_at_[position] = ordered[position].id;
      position_of_[ordered[position].id] = position;
    }
    words_.assign((tasks.size() + 63) / 64, 0);
  }
  void Clear() noexcept { std::fill(words_.begin(), words_.end(), 0); }
  void Insert(uint32_t task) noexcept {
    ENGINE_CHECK(!Has(task), "task %u was offered twice", task);
    Word(task) |= Bit(task);
  }
  void Erase(uint32_t task) noexcept { Word(task) &= ~Bit(task); }
  bool Has(uint32_t task) const noexcept {
    return (words_[position_of_[task] / 64] & Bit(task)) != 0;
  }
  // The first in the order, or kNoTask.
  uint32_t First() const noexcept {
    for (size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] == 0) continue;
      return task_at_[64 * i + static_cast<size_t>(std::countr_zero(words_[i]))];
    }
    return kNoTask;
  }
  // Takes out the first and returns it, or kNoTask.
  uint32_t Pop() noexcept {
    const uint32_t task = First();
    if (task != kNoTask) Erase(task);
    return task;
  }

 private:
  uint64_t Bit(uint32_t task) const noexcept { return uint64_t{1} << position_of_[task] % 64; }
  uint64_t& Word(uint32_t task) noexcept { return words_[position_of_[task] / 64]; }

  std::vector<uint32_t> position_of_;  // by task
  std::vector<uint32_t> task_at_;      // by position
  std::vector<uint64_t> words_;        // by position / 64
};

// How a transfer is started: when it is at the head of the list and ready, or as soon as it is ready;
// kElsewhere: somebody else sees to it.
enum class Standing : uint8_t { kElsewhere, kListed, kFree };

// Transfers of a step in a fixed order that repeats in every step. Nothing overtakes the head but
// free ones, which go in order of arrival.
class TransferList {
 public:
  // Back to the first transfer of a step, with none ready. All are listed.
  template <typename Before>
  void Reset(Array<const TaskInfo> tasks, Before before) {
    Reset(tasks, before, [](const TaskInfo&) { return Standing::kListed; });
  }
  // ... but where `standing_of` a transfer is another.
  template <typename Before, typename StandingOf>
  void Reset(Array<const TaskInfo> tasks, Before before, StandingOf standing_of) {
    standing_.assign(tasks.size(), Standing::kElsewhere);
    std::vector<TaskInfo> listed;
    for (const TaskInfo& task : tasks) {
      if (task.lane == Lane::kIo) standing_[task.id] = standing_of(task);
      if (standing_[task.id] == Standing::kListed) listed.push_back(task);
    }
    std::sort(listed.begin(), listed.end(), before);
    list_.clear();
    for (const TaskInfo& task : listed) list_.push_back(task.id);
    ready_.assign(tasks.size(), 0);
    free_.Reset(tasks.size());
    head_ = 0;
  }
  void Clear() noexcept {
    std::fill(ready_.begin(), ready_.end(), 0);
    free_.Clear();
    head_ = 0;
  }
  // A task is ready: whether it was one of these transfers.
  bool Take(uint32_t task) noexcept {
    if (standing_[task] == Standing::kFree) free_.Push(task);
    if (standing_[task] == Standing::kListed) ready_[task] = 1;
    return standing_[task] != Standing::kElsewhere;
  }

  // The transfer that must be started next, ready or not; kNoTask when a step has none.
  uint32_t head() const noexcept { return list_.empty() ? kNoTask : list_[head_]; }
  bool HeadIsReady() const noexcept { return !list_.empty() && ready_[list_[head_]] != 0; }
  // No transfer of the step was started yet.
  bool AtBegin() const noexcept { return head_ == 0; }
  // The head, which is ready and is started now.
  uint32_t Pop() noexcept {
    const uint32_t task = list_[head_];
    ready_[task] = 0;
    if (++head_ == list_.size()) head_ = 0;
    return task;
  }
  // A free one that is ready, or kNoTask.
  uint32_t PopFree() noexcept { return free_.Pop(); }
  std::span<const uint32_t> tasks() const noexcept { return list_; }

 private:
  std::vector<Standing> standing_;  // by task
  std::vector<uint32_t> list_;
  std::vector<uint8_t> ready_;  // by task
  size_t head_ = 0;             // in list_
  ReadyQueue free_;
};

}  // namespace engine::kit
