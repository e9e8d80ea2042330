// The Work of an inner communicator, handed on with a look at how it ends. It costs some ten
// nanoseconds and no lock; who must hear of the end by itself has OuterWork (outer_work.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "engine/communicator.h"
#include "engine/status.h"

namespace engine::kit {

class PassedWork;

// Works for reuse, of one communicator or several. Outlives them while a caller holds a work.
class PassedWorks : public std::enable_shared_from_this<PassedWorks> {
 public:
  PassedWorks() = default;
  PassedWorks(const PassedWorks&) = delete;
  PassedWorks& operator=(const PassedWorks&) = delete;
  virtual ~PassedWorks();

  // Submits to `inner`, whose error it returns as it is. [io-lane]
  Status Submit(Communicator& inner, const Transfer& transfer, Work** out) noexcept;

 protected:
  // What the caller of a work is told of its failure, each time that it asks. [any-thread]
  virtual Status Failed(Status status) noexcept = 0;

 private:
  friend class PassedWork;

  PassedWork* free_ = nullptr;                  // a list by `next_`, of Submit
  std::atomic<PassedWork*> returned_{nullptr};  // another, which Submit takes whole
};

class PassedWork final : public WorkBase {
 public:
  WorkState state() const noexcept override {
    const WorkState state = inner_->state();
    if (state == WorkState::kFailed) (void)all_->Failed(inner_->WaitHost(0));
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
    const std::shared_ptr<PassedWorks> all = std::move(all_);
    next_ = all->returned_.load(std::memory_order_relaxed);
    // Publishes next_ to Submit.
    while (!all->returned_.compare_exchange_weak(next_, this, std::memory_order_release,
                                                 std::memory_order_relaxed)) {
    }
  }

 private:
  friend class PassedWorks;

  Status Seen(Status status) const noexcept {
    if (status.ok() || inner_->state() == WorkState::kPending) return status;
    return all_->Failed(std::move(status));
  }

  Work* inner_ = nullptr;
  std::shared_ptr<PassedWorks> all_;  // null while it is free
  PassedWork* next_ = nullptr;
};

inline PassedWorks::~PassedWorks() {
  for (PassedWork* list : {free_, returned_.load()}) {
    while (list) delete std::exchange(list, list->next_);
  }
}

inline Status PassedWorks::Submit(Communicator& inner, const Transfer& transfer,
                                  Work** out) noexcept {
  if (!free_) free_ = returned_.exchange(nullptr, std::memory_order_acquire);
  if (!free_) free_ = new (std::nothrow) PassedWork;
  if (!free_) return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
  ENGINE_RETURN_IF_ERROR(inner.Submit(transfer, &free_->inner_));
  PassedWork* const work = std::exchange(free_, free_->next_);
  work->all_ = shared_from_this();
  *out = work;
  return {};
}

}  // namespace engine::kit
