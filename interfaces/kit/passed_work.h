// The Work of an inner communicator, handed on with a look at how it ends. It costs one atomic
// exchange and no lock; who must hear of the end by itself has OuterWork (outer_work.h).
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "engine/communicator.h"
#include "engine/status.h"

namespace engine::kit {

// What a caller of works is told.
class Told {
 public:
  virtual ~Told() = default;
  // Of a failure, each time that it asks. [any-thread]
  virtual Status Failed(Status status) noexcept = 0;
};

class PassedWork final : public WorkBase {
 public:
  WorkState state() const noexcept override {
    const WorkState state = inner_->state();
    if (state == WorkState::kFailed) (void)told_->Failed(inner_->WaitHost(0));
    return state;
  }
  int64_t started_ns() const noexcept override { return inner_->started_ns(); }
  Status WaitHost(int64_t timeout_ms) noexcept override {
    return Seen(inner_->WaitHost(timeout_ms));
  }
  Status WaitStream(Stream* stream) noexcept override { return Seen(inner_->WaitStream(stream)); }
  void OnDone(void (*callback)(void* context), void* context) noexcept override {
    inner_->OnDone(callback, context);  // which may release this work
  }
  void Release() noexcept override {
    inner_->Release();
    GiveUp(Use::kFree);
  }

 private:
  friend class PassedWorks;
  enum class Use { kFree, kHeld, kLeft };  // a caller holds it; PassedWorks are gone

  explicit PassedWork(std::shared_ptr<Told> told) noexcept : told_(std::move(told)) {}

  // The caller and PassedWorks both do in the end.
  void GiveUp(Use use) noexcept {
    if (use_.exchange(use, std::memory_order_acq_rel) != Use::kHeld) delete this;
  }
  Status Seen(Status status) const noexcept {
    if (status.ok() || inner_->state() == WorkState::kPending) return status;
    return told_->Failed(std::move(status));
  }

  const std::shared_ptr<Told> told_;
  Work* inner_ = nullptr;
  std::atomic<Use> use_{Use::kFree};
  PassedWork* next_ = this;
};

// Works for reuse, of one communicator. They outlive it while a caller holds them.
class PassedWorks {
 public:
  explicit PassedWorks(std::shared_ptr<Told> told) : told_(std::move(told)) {}
  PassedWorks(const PassedWorks&) = delete;
  PassedWorks& operator=(const PassedWorks&) = delete;
  ~PassedWorks() {
    PassedWork* work = last_ ? std::exchange(last_->next_, nullptr) : nullptr;
    while (work) std::exchange(work, work->next_)->GiveUp(PassedWork::Use::kLeft);
  }

  // Submits to `inner`, whose error it returns as it is. [io-lane]
  Status Submit(Communicator& inner, const Transfer& transfer, Work** out) noexcept {
    PassedWork* const work = Free();
    if (!work) return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
    work->use_.store(PassedWork::Use::kHeld, std::memory_order_relaxed);
    last_ = work;
    Status status = inner.Submit(transfer, &work->inner_);  // a callback may submit too
    if (status.ok()) *out = work;
    if (!status.ok()) work->use_.store(PassedWork::Use::kFree, std::memory_order_relaxed);
    return status;
  }

 private:
  // The one that was used longest ago of those that are free, or a new one.
  PassedWork* Free() noexcept {
    for (PassedWork* work = last_; work != nullptr;) {
      work = work->next_;
      if (work->use_.load(std::memory_order_acquire) == PassedWork::Use::kFree) return work;
      if (work == last_) break;
    }
    auto* const work = new (std::nothrow) PassedWork(told_);
    if (!work) return nullptr;
    if (last_) work->next_ = std::exchange(last_->next_, work);
    return last_ = work;
  }

  const std::shared_ptr<Told> told_;
  PassedWork* last_ = nullptr;  // used last, in a ring by next_
};

}  // namespace engine::kit
