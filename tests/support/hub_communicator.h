// Ranks that are threads of one test: transfers of equal sequence numbers meet in a hub, which
// carries them out one after another on a thread of its own, each after a random delay. Transfers
// that meet and differ fail on all ranks.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "engine/communicator.h"
#include "kit/deadline.h"
#include "kit/describe.h"
#include "kit/reduce.h"

namespace engine::test {

class HubWork : public WorkBase {
 public:
  WorkState state() const noexcept override {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  int64_t started_ns() const noexcept override { return started_ns_; }
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

  // The first byte leaves. Before End.
  void MarkStarted() { started_ns_ = kit::MonotonicNs(); }
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
  std::atomic<int64_t> started_ns_{0};
  void (*callback_)(void*) = nullptr;
  void* context_ = nullptr;
};

// What makes the transfers of several ranks one.
enum class HubMatch {
  kSequence,  // Transfer::sequence
  kKey,       // Transfer::key: the oldest of each rank; so ranks may submit keys in any order
};

struct HubSettings {
  int world_size = 2;
  int64_t max_delay_us = 0;
  uint32_t seed = 1;
  HubMatch match = HubMatch::kSequence;
  bool compares_keys = true;  // of transfers that meet
};

class Hub {
 public:
  explicit Hub(const HubSettings& settings)
      : settings_(settings), delay_us_(0, settings.max_delay_us), random_(settings.seed) {
    thread_ = std::thread([this] { Loop(); });
  }
  Hub(int world_size, int64_t max_delay_us, uint32_t seed)
      : Hub(HubSettings{.world_size = world_size, .max_delay_us = max_delay_us, .seed = seed}) {}
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
    if (!ended_.ok()) return ended_;
    const uint64_t id = settings_.match == HubMatch::kKey ? transfer.key : transfer.sequence;
    works_.emplace_back();
    Slot& slot = slots_[id];
    slot.resize(static_cast<size_t>(settings_.world_size));
    slot[static_cast<size_t>(rank)].push_back(
        {rank, transfer, &works_.back(),
         Clock::now() + std::chrono::milliseconds(transfer.timeout_ms)});
    *out = &works_.back();
    Match(slot);
    changed_.notify_all();
    return {};
  }

  // Fails what is pending and whatever is submitted from now on; the first reason stays. Transfers
  // that all ranks have submitted are carried out nevertheless.
  void Abort(const Status& reason) {
    std::vector<HubWork*> works;
    {
      const std::lock_guard lock(mutex_);
      if (!ended_.ok()) return;
      ended_ = reason;
      for (const auto& [id, slot] : std::exchange(slots_, {})) {
        for (const auto& queue : slot) {
          for (const Pending& pending : queue) works.push_back(pending.work);
        }
      }
      changed_.notify_all();
    }
    for (HubWork* work : works) work->End(reason);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    int rank = 0;
    Transfer transfer;
    HubWork* work = nullptr;
    Clock::time_point deadline;
  };
  using Slot = std::vector<std::deque<Pending>>;  // of one id, by rank
  using Rendezvous = std::vector<Pending>;        // by rank

  // Takes out what everyone has submitted.
  void Match(Slot& slot) {
    const auto is_missing = [](const auto& queue) { return queue.empty(); };
    while (std::none_of(slot.begin(), slot.end(), is_missing)) {
      Rendezvous& rendezvous = ready_.emplace_back();
      for (std::deque<Pending>& queue : slot) {
        rendezvous.push_back(queue.front());
        queue.pop_front();
      }
    }
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (ready_.empty()) {
        auto next = Clock::now() + std::chrono::hours(1);
        const Status late = FindLate(&next);
        if (late.ok()) {
          changed_.wait_until(lock, next);
          continue;
        }
        lock.unlock();
        Abort(late);
        lock.lock();
        continue;
      }
      const Rendezvous rendezvous = std::move(ready_.front());
      ready_.pop_front();
      const int64_t delay = delay_us_(random_);
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      const Status status = CheckIds(rendezvous);
      if (status.ok()) Carry(rendezvous);
      for (const Pending& pending : rendezvous) pending.work->End(status);
      lock.lock();
    }
  }

  // The error of a rank that has waited for too long; without one, `next` becomes the first
  // deadline.
  Status FindLate(Clock::time_point* next) const {
    for (const auto& [id, slot] : slots_) {
      const auto missing =
          std::find_if(slot.begin(), slot.end(), [](const auto& queue) { return queue.empty(); });
      for (const auto& queue : slot) {
        for (const Pending& pending : queue) {
          *next = std::min(*next, pending.deadline);
          if (Clock::now() < pending.deadline) continue;
          const auto blamed = static_cast<int>(missing - slot.begin());
          return Status::Error(StatusCode::kTimeout, "rank %d has not submitted %s", blamed,
                               Name(pending.transfer.kind))
              .WithRank(blamed);
        }
      }
    }
    return {};
  }

  Status CheckIds(const Rendezvous& rendezvous) const {
    const auto id_of = [this](const Pending& pending) {
      kit::TransferId id = kit::IdOf(pending.transfer);
      if (settings_.match == HubMatch::kKey) id.sequence = 0;  // the ranks' own
      if (!settings_.compares_keys) id.key = 0;
      return id;
    };
    const kit::TransferId first = id_of(rendezvous[0]);
    for (const Pending& other : rendezvous) {
      const kit::TransferId id = id_of(other);
      if (!kit::Agree(first, id)) return kit::Disagreement(first, id, other.rank);
    }
    return {};
  }

  static void Carry(const Rendezvous& rendezvous) {
    const Transfer& first = rendezvous[0].transfer;
    const int64_t count = first.count;
    if (count == 0) return;
    const size_t bytes = static_cast<size_t>(count) * SizeOf(first.dtype);
    switch (first.kind) {
      case TransferKind::kAllReduce:
      case TransferKind::kReduceScatter:
        CarrySum(rendezvous, static_cast<size_t>(count), bytes);
        return;
      case TransferKind::kAllGather:
        CarryGather(rendezvous, bytes);
        return;
      case TransferKind::kBroadcast:
        for (const Pending& pending : rendezvous) {
          if (pending.rank == first.root) continue;
          std::memcpy(pending.transfer.recv,
                      rendezvous[static_cast<size_t>(first.root)].transfer.send, bytes);
        }
        return;
      default:
        return;
    }
  }

  // In the order of ranks; 16-bit numbers are rounded once.
  static void CarrySum(const Rendezvous& rendezvous, size_t count, size_t bytes) {
    const Transfer& first = rendezvous[0].transfer;
    const bool scatters = first.kind == TransferKind::kReduceScatter;
    const size_t parts = scatters ? rendezvous.size() : 1;
    const kit::ReduceKernels& kernels = kit::kReduceKernels.For(first.dtype, first.reduction);
    std::vector<char> sum(parts * count * kernels.accumulator_bytes), result(parts * bytes);
    kernels.load(sum.data(), first.send, parts * count);
    for (size_t r = 1; r < rendezvous.size(); ++r) {
      kernels.fold(sum.data(), rendezvous[r].transfer.send, parts * count);
    }
    kernels.store(result.data(), sum.data(), parts * count);
    for (size_t r = 0; r < rendezvous.size(); ++r) {
      std::memcpy(rendezvous[r].transfer.recv, result.data() + (scatters ? r * bytes : 0), bytes);
    }
  }

  static void CarryGather(const Rendezvous& rendezvous, size_t bytes) {
    std::vector<char> result(bytes * rendezvous.size());
    for (size_t r = 0; r < rendezvous.size(); ++r) {
      std::memcpy(result.data() + r * bytes, rendezvous[r].transfer.send, bytes);
    }
    for (const Pending& pending : rendezvous) {
      std::memcpy(pending.transfer.recv, result.data(), result.size());
    }
  }

  const HubSettings settings_;
  std::uniform_int_distribution<int64_t> delay_us_;
  std::mt19937 random_;  // of the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Slot> slots_;  // guarded by mutex_, as all below
  std::deque<Rendezvous> ready_;
  std::deque<HubWork> works_;
  Status ended_;
  bool stop_ = false;
  std::thread thread_;
};

class HubCommunicator : public CommunicatorBase {
 public:
  HubCommunicator(Hub& hub, int rank, uint32_t ordered = 1)
      : hub_(hub), rank_(rank), ordered_(ordered) {}
  CommunicatorTraits traits() const noexcept override {
    return {.kinds = 31, .dtypes = 31, .ordered = ordered_};
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    return hub_.Submit(rank_, transfer, out);
  }
  void Abort(const Status& reason) noexcept override { hub_.Abort(reason); }

 private:
  Hub& hub_;
  const int rank_;
  const uint32_t ordered_;
};

}  // namespace engine::test
