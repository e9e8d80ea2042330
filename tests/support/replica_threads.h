// Replicas of one op on ranks that are threads of a test.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "engine/op.h"

namespace engine::test {

// The ranks of one op. A Gather ends when all ranks are there. One that waits for longer than the
// timeout, and one whose ranks give different counts, fails on all ranks, then and from then on.
class ReplicaThreads {
 public:
  using Milliseconds = std::chrono::milliseconds;

  explicit ReplicaThreads(int32_t size, Milliseconds timeout = Milliseconds(20'000))
      : timeout_(timeout) {
    for (int32_t rank = 0; rank < size; ++rank) members_.emplace_back(*this, rank);
  }
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  // For the thread that is rank `rank`; lives as long as this.
  Replicas* rank(int32_t rank) { return &members_[static_cast<size_t>(rank)]; }

  // Gathers that have ended well.
  int64_t gathers() const {
    const std::lock_guard lock(mutex_);
    return round_;
  }

 private:
  class Member final : public Replicas {
   public:
    Member(ReplicaThreads& all, int32_t rank) : all_(all), rank_(rank) {}
    int32_t size() const noexcept override { return all_.size(); }
    int32_t rank() const noexcept override { return rank_; }
    // The memory is the host's, or that of an emulated device, which may still be at work on it.
    Status Gather(const float* own, int64_t count, float* all, Stream* stream) noexcept override {
      if (stream != nullptr) ENGINE_RETURN_IF_ERROR(stream->Synchronize(20'000));
      return all_.Gather(rank_, own, count, all);
    }

   private:
    ReplicaThreads& all_;
    const int32_t rank_;
  };

  Status Gather(int32_t rank, const float* own, int64_t count, float* all) {
    std::unique_lock lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (arrived_.empty()) arrived_.assign(members_.size(), false);
    if (arrived_count_ == 0) {
      count_ = count;
      incoming_.assign(members_.size() * static_cast<size_t>(count), 0.0f);
    }
    if (count != count_) {
      return Fail(Status::Error(StatusCode::kInvalidArgument,
                                "rank %d gathers %lld floats, another rank %lld", rank,
                                static_cast<long long>(count), static_cast<long long>(count_))
                      .WithRank(rank));
    }
    std::copy_n(own, count, incoming_.begin() + rank * count);
    arrived_[static_cast<size_t>(rank)] = true;
    const int64_t round = round_;
    if (++arrived_count_ == members_.size()) {
      // The last gather's readers are done: each of them had to leave before it could come again.
      complete_.swap(incoming_);
      arrived_.clear();
      arrived_count_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      const bool ended =
          changed_.wait_for(lock, timeout_, [&] { return round_ != round || !failure_.ok(); });
      if (!ended) {
        const auto missing = std::find(arrived_.begin(), arrived_.end(), false) - arrived_.begin();
        return Fail(Status::Error(StatusCode::kTimeout,
                                  "rank %d has not come to a gather within "
                                  "%lld ms",
                                  static_cast<int>(missing),
                                  static_cast<long long>(timeout_.count()))
                        .WithRank(static_cast<int32_t>(missing)));
      }
      if (round_ == round) return failure_;
    }
    std::copy(complete_.begin(), complete_.end(), all);
    return {};
  }

  Status Fail(const Status& status) {
    failure_ = status;
    changed_.notify_all();
    return status;
  }

  const Milliseconds timeout_;
  std::deque<Member> members_;  // a deque does not move its elements
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, as all below. Of the gather under way:
  std::vector<bool> arrived_;  // by rank
  size_t arrived_count_ = 0;
  int64_t count_ = 0;
  std::vector<float> incoming_;
  // Of the one before:
  std::vector<float> complete_;
  int64_t round_ = 0;
  Status failure_;
};

}  // namespace engine::test
