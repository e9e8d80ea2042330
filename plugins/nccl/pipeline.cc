#include "pipeline.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "kit/describe.h"
#include "kit/thread.h"

namespace engine::nccl {
namespace {

// NCCL is asked for errors this often.
constexpr std::chrono::milliseconds kHealth{100};
// Other ranks are looked at, through the store, when nothing has ended for this long: while
// transfers end in their usual time, never.
constexpr std::chrono::milliseconds kLook{250};
// Between two looks at a transfer.
constexpr std::chrono::microseconds kLeastRest{10};
constexpr std::chrono::microseconds kMostRest{500};
// For NCCL's thread to take a transfer: it needs some ten microseconds where nothing is to be
// connected.
constexpr std::chrono::microseconds kBriefly{1000};
// What still runs on the GPU after an abort must end before buffers are given back.
constexpr int64_t kDrainMs = 300;
// The watchdog may still hold a work for a moment after it is terminal and released.
constexpr int kHeldByWatchdog = 1;

GpuWork* Next(const GpuWork* work) noexcept {
  return static_cast<GpuWork*>(work->next);
}

// The kernel may add 50 us to every sleep.
void ShortenTimerSlack() noexcept {
  (void)prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
}

}  // namespace

Pipeline::Pipeline(int32_t gpu, Comm& comm, const GpuStream& stream, void* token,
                   kit::Failure& failure, LivenessCheck liveness_check)
    : gpu_(gpu),
      comm_(comm),
      stream_(stream.get()),
      drain_(stream),
      token_(token),
      failure_(failure),
      pool_(kHeldByWatchdog, GpuWork::Make),
      liveness_check_(std::move(liveness_check)) {
  watchdog_ = kit::StartThread("nccl_watchdog", [this] { Loop(); });
}

// stop_ and rung_ are set with the mutex of the bell: the watchdog either sees them before it
// sleeps, or is woken.
Pipeline::~Pipeline() {
  {
    const std::lock_guard lock(bell_mutex_);
    stop_.store(true);
    bell_.notify_one();
  }
  watchdog_.join();
}

void Pipeline::Ring() noexcept {
  const std::lock_guard lock(bell_mutex_);
  rung_ = true;
  bell_.notify_one();
}

Status Pipeline::Submit(const Transfer& transfer, Work** out) noexcept {
  ENGINE_ASSIGN_OR_RETURN(GpuWork* const work, Take(transfer));
  return Add(work, out);
}

// A work of the pool is nobody else's until Enqueue, so nothing here needs a lock.
Result<GpuWork*> Pipeline::Take(const Transfer& transfer) noexcept {
  ENGINE_RETURN_IF_ERROR(UseGpu(gpu_));
  ENGINE_ASSIGN_OR_RETURN(kit::PooledWork* const taken, pool_.Take(transfer));
  auto* const work = static_cast<GpuWork*>(taken);
  work->group_.clear();
  work->submitted_ns_ = kit::MonotonicNs();
  return work;
}

Status Pipeline::SubmitGroup(Array<const Transfer> transfers, Work** out) noexcept {
  Transfer whole = transfers.front();
  for (const Transfer& transfer : transfers) {
    whole.timeout_ms = std::min(whole.timeout_ms, transfer.timeout_ms);
    if (transfer.stream != nullptr) whole.stream = transfer.stream;
  }
  std::vector<Transfer> group;
  try {
    group.assign(transfers.begin(), transfers.end());
  } catch (const std::exception&) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for a group of transfers");
  }
  ENGINE_ASSIGN_OR_RETURN(GpuWork* const work, Take(whole));
  work->group_ = std::move(group);
  return Add(work, out);
}

// sleeping_ is read after the work was appended under the mutex of comm_; see Sleep for the other
// half of that order.
Status Pipeline::Add(GpuWork* work, Work** out) noexcept {
  Status status = MarkReady(work);
  bool queued = false;
  {
    const std::lock_guard lock(comm_.mutex());
    if (status.ok() && comm_.aborted()) status = failure_.reason();
    queued = status.ok();
    if (queued) status = Enqueue(work);
    // The order of this rank is broken now: a refusal of NCCL is no less than a failure.
    if (!status.ok()) (void)failure_.Fail(status);
  }
  if (sleeping_.load() || !status.ok()) Ring();
  if (!queued) work->Complete(status);
  // The recording may end when Submit has returned.
  if (status.ok() && work->recorded_) status = work->AwaitLaunch();
  if (status.ok()) {
    *out = work;
  } else {
    work->Release();
  }
  return status;
}

// In the thread of Submit: recorded later, the event would stand for work that the user has queued
// behind it too. On a stream that is recorded it makes the transfer part of the recording.
Status Pipeline::MarkReady(GpuWork* work) noexcept {
  Stream* const stream = work->transfer().stream;
  auto* const producer = stream == nullptr ? nullptr : static_cast<cudaStream_t>(stream->native());
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (producer != nullptr) {
    ENGINE_RETURN_IF_ERROR(
        ToStatus(cudaStreamIsCapturing(producer, &capture), "asking whether a stream is recorded"));
    ENGINE_RETURN_IF_ERROR(
        ToStatus(cudaEventRecord(work->ready_event(), producer), "marking what a transfer sends"));
  }
  work->recorded_ = capture != cudaStreamCaptureStatusNone;
  work->waits_ = producer != nullptr;
  return {};
}

// With the mutex of comm_: one order of numbers, of the list and of launches.
Status Pipeline::Enqueue(GpuWork* work) noexcept {
  work->number_ = submitted_++;
  if (tail_ != nullptr) tail_->next = work;
  if (head_ == nullptr) head_ = work;
  tail_ = work;
  if (work->ready()) next_deadline_ = std::min(next_deadline_, work->deadline());
  if (launching_ == nullptr) launching_ = work;
  return LaunchWaiting();
}

// Launches what NCCL takes within a moment, in order. With the mutex of comm_, which the watchdog
// alone may want meanwhile.
Status Pipeline::LaunchWaiting() noexcept {
  while (launching_ != nullptr && !comm_.busy()) {
    if (begun_) {
      // NCCL has queued its kernels: behind them is the end, and only then may anybody wait for it.
      ENGINE_RETURN_IF_ERROR(ToStatus(cudaEventRecord(launching_->end_event(), stream_),
                                      "marking the end of a transfer"));
      launching_->SetLaunched();
      launching_ = Next(launching_);
      begun_ = false;
      continue;
    }
    begun_ = true;
    if (launching_->waits_) {
      ENGINE_RETURN_IF_ERROR(ToStatus(cudaStreamWaitEvent(stream_, launching_->ready_event(), 0),
                                      "waiting for what a transfer sends"));
    }
    ENGINE_RETURN_IF_ERROR(comm_.Start(launching_->transfers(), token_, stream_));
    const kit::Clock::time_point until = kit::Clock::now() + kBriefly;
    while (comm_.busy() && kit::Clock::now() < until) {
      sched_yield();
      ENGINE_RETURN_IF_ERROR(comm_.Poll());
    }
  }
  return {};
}

void Pipeline::Loop() noexcept {
  ShortenTimerSlack();
  const Status chosen = UseGpu(gpu_);
  if (!chosen.ok()) (void)failure_.Fail(chosen);
  awaited_since_ = kit::Clock::now();
  next_health_ = awaited_since_ + kHealth;
  next_look_ = awaited_since_ + kLook;
  while (!stop_.load()) Pass();
  bool pending = false;
  {
    const std::lock_guard lock(comm_.mutex());
    pending = head_ != nullptr;
  }
  if (pending) {
    failure_.Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
  }
  if (failure_.raised() && !ended_all_) EndAll();
}

void Pipeline::Pass() noexcept {
  if (failure_.raised()) {
    if (!ended_all_) EndAll();
    return Sleep(kLook);
  }
  GpuWork* ended = nullptr;
  Status status = Advance(&ended);
  const kit::Clock::time_point now = kit::Clock::now();
  if (ended != nullptr) {
    // Completed without any lock: its callback may submit the next transfer.
    awaited_since_ = now;
    next_look_ = now + kLook;
    return ended->Complete({});
  }
  if (status.ok()) status = CheckDeadlines(now);
  if (status.ok() && now >= next_health_) status = CheckHealth(now);
  if (!status.ok()) return Found(status);
  if (now >= next_look_) {
    next_look_ = now + kLook;
    status = liveness_check_.Look(reached());
    if (!status.ok()) (void)failure_.Fail(status);
    return;
  }
  Rest(now);
}

// Moves launches on; *ended is the first work if it is done, and no longer pending then.
Status Pipeline::Advance(GpuWork** ended) noexcept {
  GpuWork* head = nullptr;
  {
    const std::lock_guard lock(comm_.mutex());
    if (launching_ != nullptr) {
      if (comm_.busy()) ENGINE_RETURN_IF_ERROR(comm_.Poll());
      ENGINE_RETURN_IF_ERROR(LaunchWaiting());
    }
    head = head_;
    pending_ = head != nullptr;
    due_ = next_deadline_;
  }
  if (head == nullptr) return {};
  // Without the mutex: this thread alone takes works from the list, so `head` stays what it is. The
  // event of a recorded transfer is a place in a recording, which nobody may query.
  const cudaError_t state = !head->launched() ? cudaErrorNotReady
                            : head->recorded_ ? cudaSuccess
                                              : cudaEventQuery(head->end_event());
  if (state != cudaSuccess && state != cudaErrorNotReady) return ToStatus(state, "a transfer");
  if (!may_run_ || head->started_ns() == 0) NoteStart(head, state == cudaSuccess);
  due_ = std::min(due_, DeadlineOf(head, true));
  if (state == cudaErrorNotReady) return {};
  may_run_ = false;
  const std::lock_guard lock(comm_.mutex());
  head_ = Next(head);
  if (head_ == nullptr) tail_ = nullptr;
  last_end_ns_ = kit::MonotonicNs();
  *ended = head;
  return {};
}

// The first transfer starts when the one before it has ended and its data are ready.
void Pipeline::NoteStart(GpuWork* head, bool ended) noexcept {
  const bool was_ready = head->ready();
  if (!was_ready && !ended && cudaEventQuery(head->ready_event()) != cudaSuccess) return;
  if (!std::exchange(may_run_, true)) may_run_since_ = kit::Clock::now();
  if (!head->launched()) return;
  head->MarkStarted(was_ready ? std::max(head->submitted_ns(), last_end_ns_) : kit::MonotonicNs());
}

// With the end of the last transfer the clocks of all begin anew: that is progress. The clock of one
// that waits for its data begins when it is the first.
kit::Clock::time_point Pipeline::DeadlineOf(const GpuWork* work, bool first) const noexcept {
  if (work->ready()) {
    return work->DeadlineAfter(kit::Clock::time_point(std::chrono::nanoseconds(last_end_ns_)));
  }
  if (!may_run_ || !first) return kit::Clock::time_point::max();
  return may_run_since_ + kit::Timeout(work->transfer().timeout_ms);
}

Status Pipeline::CheckHealth(kit::Clock::time_point now) noexcept {
  // Not while a thread is in NCCL: it will hear of the error itself.
  const Lock lock(comm_.mutex(), std::try_to_lock);
  if (!lock.owns_lock() || comm_.busy()) return {};
  next_health_ = now + kHealth;
  return comm_.Poll();
}

Status Pipeline::CheckDeadlines(kit::Clock::time_point now) noexcept {
  if (now < due_) return {};
  const std::lock_guard lock(comm_.mutex());
  next_deadline_ = kit::Clock::time_point::max();
  for (const GpuWork* work = head_; work != nullptr; work = Next(work)) {
    const kit::Clock::time_point deadline = DeadlineOf(work, work == head_);
    if (now >= deadline) {
      return Status::Error(StatusCode::kTimeout, "%s was not done within %lld ms",
                           kit::Describe(work->transfers()).c_str(),
                           static_cast<long long>(work->transfer().timeout_ms));
    }
    next_deadline_ = std::min(next_deadline_, deadline);
  }
  return {};
}

// Transfers that have ended here, and the next one if it may run: where others do not come that
// far, they wait for this rank. What was submitted says nothing of a GPU that is far behind.
uint64_t Pipeline::reached() noexcept {
  const std::lock_guard lock(comm_.mutex());
  return head_ == nullptr ? submitted_ : head_->number_ + (may_run_ ? 1 : 0);
}

// What this rank found out by itself; the next pass ends everything.
void Pipeline::Found(const Status& error) noexcept {
  const bool others_may_know =
      error.code() == StatusCode::kTimeout || error.code() == StatusCode::kPeerLost;
  const uint64_t here = reached();
  const Status cause = others_may_know ? liveness_check_.Investigate(error, here, here) : error;
  (void)failure_.Fail(cause);
}

void Pipeline::EndAll() noexcept {
  ended_all_ = true;
  const Status reason = failure_.reason();
  // First: who sees that this rank is gone finds out why.
  liveness_check_.Publish(reason, failure_.by_caller());
  GpuWork* list = nullptr;
  {
    const std::lock_guard lock(comm_.mutex());
    comm_.Abort();
    list = std::exchange(head_, nullptr);
    tail_ = launching_ = nullptr;
    next_deadline_ = kit::Clock::time_point::max();
  }
  // An abort lets the stream run on; what does not end now waits for a stream of the user's.
  if (list != nullptr) (void)drain_.Drain(kDrainMs);
  // `next` is read before Complete: after it the work may be in use again.
  while (list != nullptr) {
    GpuWork* const work = list;
    list = Next(work);
    work->Complete(reason);
  }
}

// Looks often at what has just begun, and less often the longer it takes. Every look may keep a
// thread in Submit waiting for a lock, here or in the driver.
void Pipeline::Rest(kit::Clock::time_point now) noexcept {
  if (!pending_) {
    Sleep(kLook);
    awaited_since_ = kit::Clock::now();
    return;
  }
  const auto rest =
      std::clamp<kit::Clock::duration>((now - awaited_since_) / 16, kLeastRest, kMostRest);
  Lock lock(bell_mutex_);
  bell_.wait_for(lock, rest, [this] { return rung_ || stop_.load(); });
  rung_ = false;
}

void Pipeline::Sleep(std::chrono::milliseconds most) noexcept {
  // Who appends after this sees it, and who appended before is seen below: both under the mutex.
  sleeping_.store(true);
  bool pending = false;
  {
    const std::lock_guard lock(comm_.mutex());
    pending = head_ != nullptr;
  }
  if (!pending) {
    Lock lock(bell_mutex_);
    bell_.wait_for(lock, most, [this] { return rung_ || stop_.load(); });
    rung_ = false;
  }
  sleeping_.store(false);
}

}  // namespace engine::nccl
