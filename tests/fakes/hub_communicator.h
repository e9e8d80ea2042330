// Ranks that are threads of one test: transfers of equal sequence numbers meet in a hub, which
// carries them out one after another on a thread of its own, each after a random delay. It checks
// nothing, as the fastest backends do not.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "engine/communicator.h"

namespace engine::test {

class HubWork final : public Work {
 public:
  WorkState state() const noexcept override {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  int64_t started_ns() const noexcept override { return 0; }
  Status WaitHost(int64_t timeout_ms) noexcept override {
    std::unique_lock lock(mutex_);
    const bool ended = ended_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                       [this] { return state_ != WorkState::kPending; });
    return ended ? status_ : Status::Error(StatusCode::kTimeout, "pending");
  }
  Status WaitStream(Stream*) noexcept override { return {}; }
  void OnDone(void (*callback)(void*), void* context) noexcept override {
    std::unique_lock lock(mutex_);
    callback_ = callback;
    context_ = context;
    if (state_ == WorkState::kPending) return;
    lock.unlock();
    callback(context);
  }
  void Release() noexcept override {}

  void End(const Status& status) {
    std::unique_lock lock(mutex_);
    if (state_ != WorkState::kPending) return;
    status_ = status;
    state_ = status.ok() ? WorkState::kDone : WorkState::kFailed;
    ended_.notify_all();
    const auto callback = callback_;
    lock.unlock();
    if (callback != nullptr) callback(context_);
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  WorkState state_ = WorkState::kPending;
  Status status_;
  void (*callback_)(void*) = nullptr;
  void* context_ = nullptr;
};

class Hub {
 public:
  Hub(int world_size, int64_t max_delay_us, uint32_t seed)
      : world_size_(world_size), delay_us_(0, max_delay_us), random_(seed) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~Hub() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  Status Submit(int rank, const Transfer& transfer, Work** out) {
    const std::lock_guard lock(mutex_);
    if (!aborted_.ok()) return aborted_;
    Meeting& meeting = meetings_[transfer.sequence];
    if (meeting.transfers.empty()) {
      meeting.transfers.resize(static_cast<size_t>(world_size_));
      meeting.works.resize(static_cast<size_t>(world_size_));
    }
    works_.emplace_back();
    *out = &works_.back();
    meeting.transfers[static_cast<size_t>(rank)] = transfer;
    meeting.works[static_cast<size_t>(rank)] = &works_.back();
    if (++meeting.present == world_size_) {
      ready_.push_back(transfer.sequence);
      changed_.notify_all();
    }
    return {};
  }

  void Abort(const Status& reason) {
    std::vector<HubWork*> pending;
    {
      const std::lock_guard lock(mutex_);
      if (!aborted_.ok()) return;
      aborted_ = reason;
      for (auto& [sequence, meeting] : meetings_) {
        for (HubWork* work : meeting.works) {
          if (work != nullptr) pending.push_back(work);
        }
      }
      meetings_.clear();
      ready_.clear();
    }
    for (HubWork* work : pending) work->End(reason);
  }

 private:
  struct Meeting {
    std::vector<Transfer> transfers;  // by rank
    std::vector<HubWork*> works;
    int present = 0;
  };

  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !ready_.empty(); });
      if (stop_) return;
      const auto found = meetings_.find(ready_.front());
      ready_.pop_front();
      const Meeting meeting = std::move(found->second);
      meetings_.erase(found);
      const int64_t delay = delay_us_(random_);
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      Carry(meeting.transfers);
      for (HubWork* work : meeting.works) work->End({});
      lock.lock();
    }
  }

  // What rank 0 says is done for all: mixed-up transfers give wrong sums, as they would in the
  // wild.
  static void Carry(const std::vector<Transfer>& transfers) {
    const Transfer& first = transfers[0];
    const auto ranks = static_cast<int64_t>(transfers.size());
    const auto in = [&](int64_t rank) {
      return static_cast<const float*>(transfers[static_cast<size_t>(rank)].send);
    };
    const auto out = [&](int64_t rank) {
      return static_cast<float*>(transfers[static_cast<size_t>(rank)].recv);
    };
    int64_t count = first.count;
    for (const Transfer& other : transfers) count = std::min(count, other.count);
    std::vector<float> result(static_cast<size_t>(count * ranks));
    switch (first.kind) {
      case TransferKind::kAllReduce:
        for (int64_t r = 0; r < ranks; ++r) {
          for (int64_t i = 0; i < count; ++i) result[static_cast<size_t>(i)] += in(r)[i];
        }
        for (int64_t r = 0; r < ranks; ++r) std::copy_n(result.data(), count, out(r));
        break;
      case TransferKind::kReduceScatter:
        for (int64_t r = 0; r < ranks; ++r) {
          for (int64_t i = 0; i < count * ranks; ++i) result[static_cast<size_t>(i)] += in(r)[i];
        }
        for (int64_t r = 0; r < ranks; ++r) std::copy_n(result.data() + r * count, count, out(r));
        break;
      case TransferKind::kAllGather:
        for (int64_t r = 0; r < ranks; ++r) std::copy_n(in(r), count, result.data() + r * count);
        for (int64_t r = 0; r < ranks; ++r) std::copy_n(result.data(), count * ranks, out(r));
        break;
      case TransferKind::kBroadcast:
        for (int64_t r = 0; r < ranks; ++r) {
          if (r != first.root) std::copy_n(in(first.root), count, out(r));
        }
        break;
      case TransferKind::kBarrier:
        break;
    }
  }

  const int world_size_;
  std::uniform_int_distribution<int64_t> delay_us_;
  std::mt19937 random_;  // of the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Meeting> meetings_;  // guarded by mutex_, as all below
  std::deque<uint64_t> ready_;
  std::deque<HubWork> works_;
  Status aborted_;
  bool stop_ = false;
  std::thread thread_;
};

class HubCommunicator final : public Communicator {
 public:
  HubCommunicator(Hub& hub, int rank) : hub_(hub), rank_(rank) {}
  CommunicatorTraits traits() const noexcept override {
    return {.kinds = 31, .dtypes = 31, .ordered = 1};
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    return hub_.Submit(rank_, transfer, out);
  }
  void Abort(const Status& reason) noexcept override { hub_.Abort(reason); }

 private:
  Hub& hub_;
  const int rank_;
};

}  // namespace engine::test
