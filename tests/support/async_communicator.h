// A rank of a hub whose buffers may lie in the memory of an AsyncAccelerator. Transfers come to the
// hub in the order of Submit, each when the device has reached the point that its stream had then.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "engine/ext/recorded_transfers.h"
#include "tests/support/async_accelerator.h"
#include "tests/support/hub_communicator.h"

namespace engine::test {

class AsyncWork final : public HubWork {
 public:
  // A stream goes on behind a transfer that has failed, as it does with NCCL, but not before what
  // the transfer has waited for.
  Status WaitStream(Stream* stream) noexcept override {
    constexpr int64_t kTimeoutMs = 60000;  // beyond that of any transfer
    auto* const queue = static_cast<AsyncStream*>(stream);
    if (place_.capture != nullptr) return queue->Join(place_);
    return queue->Queue([this]() -> Status {
      (void)WaitHost(kTimeoutMs);
      if (ready_ != nullptr) (void)ready_->Wait(kTimeoutMs);
      return {};
    });
  }

  void SetReady(std::shared_ptr<AsyncPoint> ready) { ready_ = std::move(ready); }
  void EndRecorded(AsyncCapture::Place place) {
    place_ = std::move(place);
    End({});
  }

 private:
  std::shared_ptr<AsyncPoint> ready_;
  AsyncCapture::Place place_;  // of one that was recorded
};

class AsyncCommunicator final : public CommunicatorBase, public RecordedTransfersBase {
 public:
  // Called by Submit. May be empty.
  using OnSubmit = std::function<void(const Transfer& transfer)>;

  AsyncCommunicator(Hub& hub, int rank, AsyncAccelerator& device, OnSubmit on_submit = {})
      : hub_(hub), rank_(rank), device_(device), on_submit_(std::move(on_submit)) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~AsyncCommunicator() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  CommunicatorTraits traits() const noexcept override {
    return {.kinds = 31, .dtypes = 31, .ordered = 1, .device_memory = 1};
  }

  void* Query(std::string_view id) noexcept override { return Offer<RecordedTransfers>(id, this); }

  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    if (on_submit_) on_submit_(transfer);
    Pending pending{.transfer = transfer};
    auto* const stream = static_cast<AsyncStream*>(transfer.stream);
    if (stream != nullptr && stream->Tip().capture != nullptr)
      return Record(transfer, *stream, out);
    if (transfer.stream != nullptr) {
      ENGINE_RETURN_IF_ERROR(static_cast<AsyncStream*>(transfer.stream)->Mark(&pending.point));
    } else {
      CheckThatItIsThere(transfer);
    }
    pending.transfer.send = OnDevice(transfer.send);
    pending.transfer.recv = OnDevice(transfer.recv);
    pending.transfer.stream = nullptr;
    const std::lock_guard lock(mutex_);
    if (!aborted_.ok()) return aborted_;
    pending.work = &works_.emplace_back();
    pending.work->SetReady(pending.point);
    *out = pending.work;
    queue_.push_back(std::move(pending));
    changed_.notify_all();
    return {};
  }

  void Abort(const Status& reason) noexcept override {
    std::deque<Pending> ended;
    {
      const std::lock_guard lock(mutex_);
      if (!aborted_.ok()) return;
      aborted_ = reason;
      ended.swap(queue_);
    }
    hub_.Abort(reason);
    for (const Pending& pending : ended) pending.work->End(reason);
  }

  // Transfers that were said to be ready while the device had still to write what they send.
  int too_early() const { return too_early_.load(); }

 private:
  struct Pending {
    Transfer transfer;
    std::shared_ptr<AsyncPoint> point;  // null: ready
    AsyncWork* work = nullptr;
  };
  // Of one transfer in the hub.
  struct Link {
    Work* inner;
    AsyncWork* outer;
  };

  // Transfers of one recording have the order in which they were recorded. If one fails, those that
  // are submitted later tell.
  Status Record(Transfer transfer, AsyncStream& stream, Work** out) {
    transfer.send = OnDevice(transfer.send);
    transfer.recv = OnDevice(transfer.recv);
    transfer.stream = nullptr;
    AsyncCapture::Place place = stream.Tip();
    AsyncCapture& capture = *place.capture;
    if (recorded_.capture == place.capture) place.after.push_back(recorded_.after.front());
    capture.nodes.push_back({[this, transfer]() -> Status {
                               Work* work = nullptr;
                               const Status status = hub_.Submit(rank_, transfer, &work);
                               if (status.ok()) (void)work->WaitHost(2 * transfer.timeout_ms);
                               return {};
                             },
                             place.after});
    recorded_ = {place.capture, {capture.nodes.size() - 1}};
    const std::lock_guard lock(mutex_);
    AsyncWork& work = works_.emplace_back();
    work.EndRecorded(recorded_);
    *out = &work;
    return {};
  }

  void CheckThatItIsThere(const Transfer& transfer) {
    const bool scatters = transfer.kind == TransferKind::kReduceScatter;
    const int64_t count = transfer.count * (scatters ? 2 : 1);  // at least two ranks
    if (device_.IsWrittenLater(transfer.send,
                               static_cast<size_t>(count) * SizeOf(transfer.dtype))) {
      ++too_early_;
    }
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Pending pending = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      const Status status = Forward(pending);
      if (!status.ok()) pending.work->End(status);
      lock.lock();
    }
  }

  Status Forward(const Pending& pending) {
    ENGINE_RETURN_IF_ERROR(WaitFor(pending));
    Work* inner = nullptr;
    ENGINE_RETURN_IF_ERROR(hub_.Submit(rank_, pending.transfer, &inner));
    // Freed by the callback.
    inner->OnDone(
        [](void* context) {
          const std::unique_ptr<Link> link(static_cast<Link*>(context));
          link->outer->End(link->inner->WaitHost(0));
        },
        new Link{inner, pending.work});
    return {};
  }

  Status WaitFor(const Pending& pending) {
    constexpr int64_t kLookMs = 10;
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (!aborted_.ok()) return aborted_;
      }
      if (pending.point == nullptr) return {};
      const Status status = pending.point->Wait(kLookMs);
      if (status.code() != StatusCode::kTimeout) return status;
    }
  }

  Hub& hub_;
  const int rank_;
  AsyncAccelerator& device_;
  const OnSubmit on_submit_;
  AsyncCapture::Place recorded_;  // the last transfer of the last recording
  std::atomic<int> too_early_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AsyncWork> works_;  // guarded by mutex_, as all below
  std::deque<Pending> queue_;
  Status aborted_;
  bool stop_ = false;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace engine::test
