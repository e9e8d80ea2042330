#include "work.h"

#include <exception>
#include <utility>

#include "cuda_error.h"
#include "describe.h"

namespace engine::nccl {
namespace {

// How much later than its deadline a work is terminal at worst: a roll call, and looks of some
// milliseconds.
constexpr int64_t kGraceMs = 3000;

// The watchdog may still hold a work for a moment after it is terminal and released.
constexpr int kHeldByWatchdog = 1;

}  // namespace

GpuWork::~GpuWork() {
  if (ready_event_ != nullptr) (void)cudaEventDestroy(ready_event_);
  if (end_event_ != nullptr) (void)cudaEventDestroy(end_event_);
}

Status GpuWork::MakeEvents() noexcept {
  for (cudaEvent_t* event : {&ready_event_, &end_event_}) {
    ENGINE_RETURN_IF_ERROR(
        ToStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event"));
  }
  return {};
}

void GpuWork::Start(const Transfer& transfer, std::shared_ptr<WorkPool> pool) noexcept {
  transfer_ = transfer;
  group_.clear();
  deadline_ = Clock::time_point::max();
  submitted_ns_ = MonotonicNs();
  pool_ = std::move(pool);
  next_ = nullptr;
  started_ns_.store(0, std::memory_order_relaxed);
  references_.store(2, std::memory_order_relaxed);
  uses_.store(2, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  status_ = {};
  callback_ = nullptr;
  launched_.store(false, std::memory_order_relaxed);
  state_.store(WorkState::kPending, std::memory_order_relaxed);
}

void GpuWork::SetLaunched() noexcept {
  const std::lock_guard lock(mutex_);
  launched_.store(true, std::memory_order_release);
  if (waiters_ > 0) changed_.notify_all();
}

void GpuWork::Complete(Status status) noexcept {
  EndUse();  // before a waiter can submit the next one
  void (*callback)(void*) = nullptr;
  void* context = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const WorkState state = status.ok() ? WorkState::kDone : WorkState::kFailed;
    status_ = std::move(status);
    state_.store(state, std::memory_order_release);
    callback = std::exchange(callback_, nullptr);
    context = callback_context_;
    if (waiters_ > 0) changed_.notify_all();
  }
  if (callback) callback(context);
}

void GpuWork::Unreference() noexcept {
  // The last one must see what all others did to the work.
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::shared_ptr<WorkPool> pool = std::move(pool_);  // Return lets others take this work
  pool->Return(this);
}

void GpuWork::Release() noexcept {
  EndUse();
  Unreference();
}

void GpuWork::EndUse() noexcept {
  if (uses_.fetch_sub(1, std::memory_order_relaxed) == 1) pool_->EndUse();
}

Status GpuWork::StillPending(int64_t timeout_ms) const noexcept {
  return Status::Error(StatusCode::kTimeout, "%s is still pending after a wait of %lld ms",
                       Describe(transfers()).c_str(), static_cast<long long>(timeout_ms));
}

Status GpuWork::WaitHost(int64_t timeout_ms) noexcept {
  const Clock::time_point give_up = DeadlineIn(timeout_ms);
  std::unique_lock lock(mutex_);
  ++waiters_;
  const bool ended = changed_.wait_until(lock, give_up, [this] { return terminal(); });
  --waiters_;
  return ended ? status_ : StillPending(timeout_ms);
}

// While NCCL connects the ranks there is nothing on the GPU to wait for.
Status GpuWork::AwaitLaunch() noexcept {
  if (launched()) return {};
  const int64_t limit_ms = transfer_.timeout_ms + kGraceMs;
  std::unique_lock lock(mutex_);
  ++waiters_;
  const bool there =
      changed_.wait_until(lock, DeadlineIn(limit_ms), [this] { return launched() || terminal(); });
  --waiters_;
  if (!there) return StillPending(limit_ms);
  return launched() ? Status() : status_;
}

Status GpuWork::WaitStream(Stream* stream) noexcept {
  auto* const native = stream == nullptr ? nullptr : static_cast<cudaStream_t>(stream->native());
  // Work of the CPU is done when asked for.
  if (native == nullptr) return WaitHost(transfer_.timeout_ms + kGraceMs);
  ENGINE_RETURN_IF_ERROR(AwaitLaunch());
  if (terminal() && !recorded_) return WaitHost(0);
  return ToStatus(cudaStreamWaitEvent(native, end_event_, 0), "waiting for a transfer");
}

void GpuWork::OnDone(void (*callback)(void* context), void* context) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!terminal()) {
      callback_ = callback;
      callback_context_ = context;
      return;
    }
  }
  callback(context);
}

Result<GpuWork*> WorkPool::Take(const Transfer& transfer) noexcept {
  GpuWork* work = nullptr;
  const auto wanted =
      static_cast<size_t>(in_use_.fetch_add(1, std::memory_order_relaxed) + 1 + kHeldByWatchdog);
  try {
    const std::lock_guard lock(mutex_);
    while (all_.size() < wanted || free_.empty()) {
      const Status grown = Grow();
      if (grown.ok()) continue;
      EndUse();
      return grown;
    }
    work = free_.back();
    free_.pop_back();
  } catch (const std::exception&) {
    EndUse();
    return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
  }
  work->Start(transfer, shared_from_this());
  return work;
}

Status WorkPool::Grow() {
  auto work = std::make_unique<GpuWork>();
  ENGINE_RETURN_IF_ERROR(work->MakeEvents());
  free_.reserve(all_.size() + 1);
  all_.push_back(std::move(work));
  free_.push_back(all_.back().get());
  return {};
}

void WorkPool::Return(GpuWork* work) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(work);  // within its capacity: see Grow
}

}  // namespace engine::nccl
