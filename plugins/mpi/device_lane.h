// Transfers in memory of a device. MPI knows no streams, so the lane waits for the work that a
// transfer stands behind.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "collectives.h"
#include "engine/device.h"
#include "kit/lanes.h"
#include "kit/progress.h"

namespace engine::mpi {

class DeviceLane final : public kit::Transport {
 public:
  // Borrows `progress`. `make`: a unique_ptr<Collectives>, null in a world of one, where transfers
  // are copies.
  template <typename Make>
  DeviceLane(OnDevice place, const Make& make, kit::Progress& progress)
      : place_(std::move(place)), collectives_(make(progress, &place_)), progress_(progress) {}
  Collectives* collectives() const noexcept { return collectives_.get(); }

  // The transfer that is submitted next begins after what `stream`, or null, has by now. [io-lane]
  Status Follow(Stream* stream) noexcept {
    std::unique_ptr<Event> mark;
    if (stream != nullptr) {
      ENGINE_RETURN_IF_ERROR(TakeMark(&mark));
      ENGINE_RETURN_IF_ERROR(stream->Record(mark.get()));
    }
    const std::lock_guard lock(mutex_);
    marks_.push_back(std::move(mark));
    return {};
  }
  // That transfer was refused. [io-lane]
  void Forget() noexcept {
    const std::lock_guard lock(mutex_);
    marks_.pop_back();
  }
  void Stop() noexcept { stopped_ = true; }  // [any-thread]

  Status Run(kit::PooledWork& work) noexcept override {
    ENGINE_RETURN_IF_ERROR(AwaitMark());
    if (collectives_ != nullptr) return collectives_->Run(work);
    const Transfer& transfer = work.transfer();
    const size_t size = kit::SizeBytes(transfer);
    work.MarkStarted();
    if (size == 0 || transfer.recv == nullptr || transfer.send == transfer.recv) return {};
    ENGINE_RETURN_IF_ERROR(
        place_.device->Copy(transfer.recv, transfer.send, size, place_.stream.get()));
    return place_.stream->Synchronize(transfer.timeout_ms);
  }
  int32_t WaitingFor() const noexcept override {
    return collectives_ == nullptr ? -1 : collectives_->WaitingFor();
  }

 private:
  Status TakeMark(std::unique_ptr<Event>* out) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        *out = std::move(free_.back());
        free_.pop_back();
        return {};
      }
    }
    Event* made = nullptr;
    ENGINE_RETURN_IF_ERROR(place_.device->CreateEvent(&made));
    out->reset(made);
    return {};
  }
  // The time of a transfer counts from when its stream has come to it.
  Status AwaitMark() noexcept {
    std::unique_lock lock(mutex_);
    std::unique_ptr<Event> mark = std::move(marks_.front());
    marks_.pop_front();
    if (mark == nullptr) return {};
    lock.unlock();
    while (true) {
      const Status reached = mark->WaitHost(10);
      if (!reached.ok() && reached.code() != StatusCode::kTimeout) return reached;
      if (reached.ok()) break;
      if (stopped_) return Status::Error(StatusCode::kAborted, "the communicator was stopped");
      progress_.Moved(0);
    }
    lock.lock();
    free_.push_back(std::move(mark));
    return {};
  }

  const OnDevice place_;
  const std::unique_ptr<Collectives> collectives_;  // uses place_
  kit::Progress& progress_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::deque<std::unique_ptr<Event>> marks_,
      free_;  // in the order of submission; guarded by mutex_
};

}  // namespace engine::mpi
