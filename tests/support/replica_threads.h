// Replicas of one op on ranks that are threads of a test.
#pragma once

#include <atomic>
#include <deque>

#include "engine/op.h"
#include "tests/support/hub_communicator.h"

namespace engine::test {

// The ranks of one op, which meet in a hub. A Gather ends when all ranks are there. One that waits
// for longer than the timeout fails on all ranks, then and from then on.
class ReplicaThreads {
 public:
  explicit ReplicaThreads(int32_t size, int64_t timeout_ms = 20'000)
      : hub_(size, 0, 1), timeout_ms_(timeout_ms) {
    for (int32_t rank = 0; rank < size; ++rank) members_.emplace_back(*this, rank);
  }
  ReplicaThreads(const ReplicaThreads&) = delete;

  // For the thread that is rank `rank`; lives as long as this.
  Replicas* rank(int32_t rank) { return &members_[static_cast<size_t>(rank)]; }

  // Gathers that have ended well.
  int64_t gathers() const { return members_.front().gathers; }

 private:
  struct Member final : Replicas {
    Member(ReplicaThreads& its_all, int32_t its_rank) : all(its_all), own_rank(its_rank) {}
    int32_t size() const noexcept override { return static_cast<int32_t>(all.members_.size()); }
    int32_t rank() const noexcept override { return own_rank; }
    // The memory is the host's, or that of an emulated device, which may still be at work on it.
    Status Gather(const float* own, int64_t count, float* to, Stream* stream) noexcept override {
      if (stream != nullptr) ENGINE_RETURN_IF_ERROR(stream->Synchronize(20'000));
      const Transfer gather{.kind = TransferKind::kAllGather,
                            .send = own,
                            .recv = to,
                            .count = count,
                            .sequence = sequence++,
                            .timeout_ms = all.timeout_ms_};
      Work* work = nullptr;
      ENGINE_RETURN_IF_ERROR(all.hub_.Submit(own_rank, gather, &work));
      const Status status = work->WaitHost(2 * all.timeout_ms_ + 1000);
      gathers += status.ok() ? 1 : 0;
      return status;
    }

    ReplicaThreads& all;
    const int32_t own_rank;
    uint64_t sequence = 0;
    std::atomic<int64_t> gathers{0};
  };

  Hub hub_;
  const int64_t timeout_ms_;
  std::deque<Member> members_;  // a deque does not move its elements
};

}  // namespace engine::test
