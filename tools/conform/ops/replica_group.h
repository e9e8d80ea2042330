// Replicas of one op on ranks that are threads of this process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/op.h"
#include "tools/conform/ops/op_sample.h"

namespace engine::conform {

// A Gather ends when all ranks are there. One that waits for longer than the timeout fails on all
// ranks, then and from then on.
class ReplicaGroup {
 public:
  explicit ReplicaGroup(int32_t size, int64_t timeout_ms = 20'000)
      : timeout_(timeout_ms), parts_(static_cast<size_t>(size)) {
    for (int32_t rank = 0; rank < size; ++rank) members_.emplace_back(*this, rank);
  }
  ReplicaGroup(const ReplicaGroup&) = delete;

  // For the thread that is rank `rank`, whose op runs on `device`; lives as long as this.
  Replicas* rank(int32_t rank, Device* device) {
    Member& member = members_[static_cast<size_t>(rank)];
    member.device = device;
    return &member;
  }

  // The counts of the gathers that `rank` has asked for.
  const std::vector<int64_t>& counts(int32_t rank) const {
    return members_[static_cast<size_t>(rank)].counts;
  }
  // How many have ended well.
  int64_t gathers() const { return rounds_; }

 private:
  struct Member final : ReplicasBase {
    Member(ReplicaGroup& its_group, int32_t its_rank) : group(its_group), own_rank(its_rank) {}
    int32_t size() const noexcept override { return static_cast<int32_t>(group.parts_.size()); }
    int32_t rank() const noexcept override { return own_rank; }
    Status Gather(const float* own, int64_t count, float* all, Stream* stream) noexcept override {
      counts.push_back(count);
      std::vector<float> part(static_cast<size_t>(count)), whole;
      ENGINE_RETURN_IF_ERROR(device->Copy(part.data(), own, part.size() * sizeof(float), stream));
      ENGINE_RETURN_IF_ERROR(stream->Synchronize(kDeviceTimeoutMs));
      ENGINE_RETURN_IF_ERROR(group.Gather(static_cast<size_t>(own_rank), part, &whole));
      if (whole.size() != part.size() * group.parts_.size()) {
        return Status::Error(StatusCode::kInvalidArgument, "ranks gather different counts");
      }
      ENGINE_RETURN_IF_ERROR(device->Copy(all, whole.data(), whole.size() * sizeof(float), stream));
      return stream->Synchronize(kDeviceTimeoutMs);
    }

    ReplicaGroup& group;
    const int32_t own_rank;
    Device* device = nullptr;
    std::vector<int64_t> counts;
  };

  Status Gather(size_t rank, const std::vector<float>& own, std::vector<float>* all) {
    std::unique_lock lock(mutex_);
    parts_[rank] = own;
    here_ |= uint64_t{1} << rank;
    const int64_t round = rounds_;
    if (!failed_ && here_ + 1 == uint64_t{1} << parts_.size()) {
      gathered_.clear();
      for (const auto& part : parts_) gathered_.insert(gathered_.end(), part.begin(), part.end());
      here_ = 0;
      ++rounds_;
      changed_.notify_all();
    }
    failed_ |= !changed_.wait_for(lock, timeout_, [&] { return rounds_ > round || failed_; });
    changed_.notify_all();
    if (rounds_ > round) {
      // Nobody begins the next round before this rank asks for it.
      *all = gathered_;
      return {};
    }
    int32_t missing = 0;
    while ((here_ >> missing & 1) != 0) ++missing;
    return Status::Error(StatusCode::kTimeout, "a gather of replicas timed out after %lld ms",
                         static_cast<long long>(timeout_.count()))
        .WithRank(missing);
  }

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<std::vector<float>> parts_;
  std::vector<float> gathered_;
  uint64_t here_ = 0;  // bit of each rank
  int64_t rounds_ = 0;
  bool failed_ = false;
  std::deque<Member> members_;  // a deque does not move its elements
};

// Ranks that are threads, each with the library that `load` gives it and the samples [cuts[r],
// cuts[r + 1]) of a problem. `group` is null for an op that needs none.
template <typename Load>
std::vector<RunResult> RunRanks(const OpSample& sample, const Problem& problem,
                                const std::vector<int64_t>& cuts, const RunOptions& options,
                                ReplicaGroup* group, const Load& load) {
  std::vector<RunResult> results(cuts.size() - 1);
  std::vector<std::jthread> ranks;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    ranks.emplace_back([&, rank, own = options]() mutable {
      const LoadedOps ops = load();
      MadeOp op = Must(ops.Make(sample));
      own.random.first_sample += static_cast<uint64_t>(cuts[rank]);
      if (group != nullptr) own.replicas = group->rank(static_cast<int32_t>(rank), ops.device());
      results[rank] = RunOp(ops.device(), op, PartOf(problem, cuts[rank], cuts[rank + 1]), own);
      EXPECT_TRUE(results[rank].status.ok()) << results[rank].status.message();
    });
  }
  ranks.clear();  // waits
  return results;
}

}  // namespace engine::conform
