// What servers make of pushes: bit for bit what one process would compute.
#include <algorithm>
#include <latch>
#include <thread>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/parameter_server/members.h"
#include "tools/conform/parameter_server/served_fixture.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/ext/parameter_server.h";

constexpr uint64_t kSteps = 20;

float RateOf(uint64_t step) {
  return 0.05f / static_cast<float>(step % 7 + 1);
}

// Zero on all ranks in some steps: an update divides by 1 at least.
float WeightOf(int rank, uint64_t step) {
  return static_cast<float>((step * 3 + static_cast<uint64_t>(rank) * 5) % 4 * (step % 5));
}

// Values of every bucket after every step.
class History {
 public:
  History(const std::vector<TestBucket>& buckets, const OptimizerChoice& choice, int ranks,
          uint64_t first_step) {
    for (const TestBucket& bucket : buckets) {
      ReferenceBucket reference(bucket, choice.Make());
      values_.emplace_back();
      for (uint64_t step = first_step; step < first_step + kSteps; ++step) {
        std::vector<Contribution> contributions;
        for (int rank = 0; rank < ranks; ++rank) {
          contributions.push_back({bucket.Gradient(rank, step), WeightOf(rank, step)});
        }
        reference.Update(contributions, RateOf(step), step);
        values_.back().push_back(reference.value());
      }
      states_.push_back(reference.states());
    }
  }
  const std::vector<float>& value(size_t bucket, uint64_t index) const {
    return values_[bucket][index];
  }
  const std::vector<std::vector<float>>& states(size_t bucket) const { return states_[bucket]; }

 private:
  std::vector<std::vector<std::vector<float>>> values_;  // by bucket and step
  std::vector<std::vector<std::vector<float>>> states_;  // by bucket, at the end
};

using ServedSync = Served<kSyncMode>;

// Every rank takes the buckets in an order of its own.
void Train(Members& members, int rank, const std::vector<TestBucket>& buckets,
           const History& history, uint64_t first_step) {
  std::vector<std::vector<float>> pulled(buckets.size()), gradients(buckets.size());
  for (uint64_t step = first_step; step < first_step + kSteps; ++step) {
    ASSERT_OK(members.Begin(rank, step, RateOf(step), WeightOf(rank, step)));
    std::vector<Work*> pushes(buckets.size()), pulls(buckets.size());
    const auto at = [&](size_t i) { return rank % 2 == 0 ? i : buckets.size() - 1 - i; };
    for (size_t i = 0; i < buckets.size(); ++i) {
      gradients[at(i)] = buckets[at(i)].Gradient(rank, step);
      pushes[at(i)] = members.SubmitPush(rank, buckets[at(i)], gradients[at(i)]);
    }
    Status status;  // the first error; nothing is in flight when this returns
    const auto note = [&status](const Status& error) {
      if (status.ok()) status = error;
    };
    for (size_t i = 0; i < buckets.size(); ++i) {
      note(Finish(pushes[at(i)]));
      pulls[at(i)] = members.SubmitPull(rank, buckets[at(i)], &pulled[at(i)]);
    }
    for (Work* pull : pulls) note(Finish(pull));
    ASSERT_OK(status);
    for (size_t i = 0; i < buckets.size(); ++i) {
      ASSERT_TRUE(SameBits(pulled[i], history.value(i, step - first_step)))
          << "rank " << rank << ", step " << step << ", bucket " << i;
    }
  }
}

TEST_P(ServedSync, TwentyStepsHaveTheBitsOfOneProcess) {
  MUST(
      "kSync: the update of a step is made once, of the sum over all ranks in one order, divided "
      "by the sum of the weights unless that is 0.");
  const auto buckets = AwkwardBuckets();
  for (const OptimizerChoice& choice : kDemandingOptimizers) {
    const int ranks = choice.states == 1 ? 3 : 2;
    const uint64_t first_step = choice.states == 1 ? 1 : 101;
    const History history(buckets, choice, ranks, first_step);
    Members members(GetParam(), ranks, choice);
    members.Start(buckets);
    RunRanks(ranks, [&](int rank) { Train(members, rank, buckets, history, first_step); });
    if (HasFailure()) return;
    for (size_t u = 0; u < buckets.size(); ++u) {
      members.ExpectLoaded(ranks - 1, buckets[u], -1, history.value(u, kSteps - 1));
      for (int32_t s = 0; s < choice.states; ++s) {
        members.ExpectLoaded(ranks - 1, buckets[u], s, history.states(u)[static_cast<size_t>(s)]);
      }
    }
  }
}

TEST_P(ServedSync, APullWaitsForAllAndHasTheWholeStep) {
  MUST("kSync: a pull of step t waits for the update of step t, of all ranks.");
  constexpr int kRanks = 3;
  Members members(GetParam(), kRanks);
  const auto buckets = members.Start(SmallBuckets());
  ReferenceBucket reference(buckets[0], OptimizerChoice{}.Make());
  for (uint64_t step = 1; step <= 3; ++step) {
    std::vector<std::vector<float>> pulled(kRanks);
    std::vector<Work*> pulls;
    std::vector<Contribution> all;
    // The rank that comes last is another one in every step.
    for (int i = 0; i < kRanks; ++i) {
      const int rank = (i + static_cast<int>(step)) % kRanks;
      for (Work* pull : pulls) EXPECT_EQ(pull->state(), WorkState::kPending);
      ASSERT_OK(members.Begin(rank, step));
      ASSERT_OK(members.Push(rank, buckets[1], buckets[1].Gradient(rank, step)));
      for (Work* pull : pulls) EXPECT_EQ(pull->state(), WorkState::kPending);
      ASSERT_OK(members.Push(rank, buckets[0], buckets[0].Gradient(rank, step)));
      pulls.push_back(members.SubmitPull(rank, buckets[0], &pulled[static_cast<size_t>(rank)]));
      all.push_back({buckets[0].Gradient(i, step)});
    }
    reference.Update(all, 0.125f, step);
    for (Work* pull : pulls) ASSERT_OK(Finish(pull));
    for (const auto& value : pulled) EXPECT_TRUE(SameBits(value, reference.value()));
  }
}

// What was loaded within a step is that of the whole step.
TEST_P(ServedSync, ALoadWaitsForTheWholeStep) {
  MUST("kSync: Load has the whole of the step of the last BeginStep.");
  Members members(GetParam(), 2);
  const TestBucket bucket = members.Start({PlainBucket(31, 100)})[0];
  ASSERT_OK(members.Begin(0, 1));
  ASSERT_OK(members.Push(0, bucket, bucket.Filled(1)));
  std::vector<float> loaded, expected = bucket.Values();
  std::thread loads([&] { EXPECT_OK(members.Load(0, bucket, -1, &loaded)); });
  ASSERT_OK(members.Begin(1, 1));
  ASSERT_OK(members.Push(1, bucket, bucket.Filled(3)));
  loads.join();
  for (float& value : expected) value -= 0.125f * 2;  // the mean of 1 and 3
  EXPECT_TRUE(SameBits(loaded, expected));
}

// Nobody pulls before all of it was pushed, in opposite orders: pushes end on their own.
TEST_P(ServedSync, PushesEndAlthoughOthersHaveNotPushed) {
  MUST("A push is done when servers have it, whatever other ranks do.");
  Members members(GetParam(), 2);
  std::vector<TestBucket> buckets;
  for (uint64_t key = 1; key <= 12; ++key) buckets.push_back(PlainBucket(key, 50000));
  members.Start(buckets);
  std::vector<float> value;
  for (uint64_t step = 1; step <= 2; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_OK(members.Begin(rank, step));
      for (size_t i = 0; i < buckets.size(); ++i) {
        const TestBucket& bucket = buckets[rank == 0 ? i : buckets.size() - 1 - i];
        ASSERT_OK(members.Push(rank, bucket, bucket.Filled(1)));
      }
    }
    for (int rank = 0; rank < 2; ++rank) {
      for (const TestBucket& bucket : buckets) ASSERT_OK(members.Pull(rank, bucket, &value));
    }
  }
}

using ServedAsync = Served<kAsyncModes>;

TEST_P(ServedAsync, AloneARankHasTheBitsOfOneProcess) {
  MUST("kBounded, kAsync: each push is an update.");
  const auto buckets = AwkwardBuckets();
  for (const OptimizerChoice& choice : kDemandingOptimizers) {
    const History history(buckets, choice, 1, 1);
    Members members(GetParam(), 1, choice);
    members.Start(buckets);
    Train(members, 0, buckets, history, 1);
  }
}

TEST_P(ServedAsync, APullHasTheOwnPushAndThoseThatEndedBefore) {
  MUST("kBounded, kAsync: a pull has the own push and every push that has ended before.");
  constexpr int kRanks = 3;
  Members members(GetParam(), kRanks);
  const TestBucket bucket = members.Start({PlainBucket(31, 5000)})[0];
  ReferenceBucket reference(bucket, OptimizerChoice{}.Make());
  std::vector<float> got;
  for (uint64_t step = 1; step <= 4; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const Contribution own{bucket.Gradient(rank, step), 4};
      reference.Update({&own, 1}, 0.5f, step);
      ASSERT_OK(members.Begin(rank, step, 0.5f, 4));
      ASSERT_OK(members.Push(rank, bucket, own.gradient));
      ASSERT_OK(members.Pull(rank, bucket, &got));
      ASSERT_TRUE(SameBits(got, reference.value())) << "rank " << rank << ", step " << step;
      members.ExpectLoaded(rank, bucket, -1, reference.value());
    }
  }
}

// All numbers are sums of few powers of two, so no order of updates rounds.
TEST_P(ServedAsync, AtTheEndEveryPushWasAppliedOnce) {
  MUST("kBounded, kAsync: every push is applied exactly once.");
  constexpr int kRanks = 3;
  Members members(GetParam(), kRanks);
  const TestBucket bucket = PlainBucket(31, 200003);
  const std::vector<float> zero = bucket.Filled(0);
  members.RegisterAll({bucket});
  ASSERT_OK(members.Store(bucket, -1, zero));
  std::latch pulled(kRanks);
  RunRanks(kRanks, [&](int rank) {
    std::vector<float> gradient(zero.size()), value;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>((i + step) % 5 + static_cast<size_t>(rank) * 7);
      }
      EXPECT_OK(members.Begin(rank, step, 0.25f, static_cast<float>(1 << rank)));
      EXPECT_OK(members.Push(rank, bucket, gradient));
      EXPECT_OK(members.Pull(rank, bucket, &value));
    }
    pulled.arrive_and_wait();
    std::vector<float> expected(zero.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      for (uint64_t step = 1; step <= kSteps; ++step) {
        for (size_t r = 0; r < kRanks; ++r) {
          const auto pushed = static_cast<float>((i + step) % 5 + r * 7);
          expected[i] -= 0.25f * pushed / static_cast<float>(1 << r);
        }
      }
    }
    members.ExpectLoaded(rank, bucket, -1, expected);
  });
}

using ServedRows = Served<kAllModes>;

// The rows that a rank pushes in a step: none, few, all, some of them the same as of others.
std::vector<int32_t> RowsOf(int rank, uint64_t step, int32_t count) {
  std::vector<int32_t> rows;
  const auto stride = static_cast<int32_t>(step * 2 - 1);
  if (step == 3 && rank == 0) return rows;
  for (int32_t row = rank; row < count; row += step == 2 ? 1 : stride) rows.push_back(row);
  return rows;
}

// Of three buckets that are equal: all push whole gradients, rows, or one this and one that.
TEST_P(ServedRows, SparsePushesHaveTheBitsOfDenseOnes) {
  MUST("Rows that were not selected count as gradients of zero.");
  constexpr int kRanks = 2;
  constexpr int32_t kRows = 3001, kRow = 96;
  const TestBucket dense{
      .key = 41,
      .spans = {{.count = 1001 * kRow, .weight_decay_scale = 0.5f}, {.count = 2000 * kRow}},
      .row = kRow};
  TestBucket sparse = dense, mixed = dense;
  sparse.key = 42;
  mixed.key = 43;
  const std::vector<TestBucket> buckets = {dense, sparse, mixed};
  for (const OptimizerChoice& choice : kDemandingOptimizers) {
    Members members(GetParam(), kRanks, choice);
    members.RegisterAll(buckets);
    for (const TestBucket& bucket : buckets) {
      ASSERT_OK(members.Store(bucket, -1, dense.Values()));
    }
    for (uint64_t step = 1; step <= 5; ++step) {
      for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_OK(members.Begin(rank, step, 0.1f, 3));
        const std::vector<int32_t> rows = RowsOf(rank, step, kRows);
        const std::vector<float> all = dense.Gradient(rank, step);
        std::vector<float> gradient = dense.Filled(0), garbage = dense.Filled(1e30f);
        for (const int32_t row : rows) {
          std::copy_n(all.data() + row * kRow, kRow, gradient.data() + row * kRow);
          std::copy_n(all.data() + row * kRow, kRow, garbage.data() + row * kRow);
        }
        ASSERT_OK(members.Push(rank, dense, gradient));
        ASSERT_OK(members.Push(rank, sparse, garbage, &rows));
        const bool is_sparse = step % 2 == static_cast<uint64_t>(rank);
        ASSERT_OK(
            members.Push(rank, mixed, is_sparse ? garbage : gradient, is_sparse ? &rows : nullptr));
      }
      std::vector<float> expected, got;
      ASSERT_OK(members.Pull(1, dense, &expected));
      for (const TestBucket& bucket : {sparse, mixed}) {
        ASSERT_OK(members.Pull(1, bucket, &got));
        ASSERT_TRUE(SameBits(got, expected)) << choice.states << " states, step " << step;
      }
    }
  }
}

TEST_P(ServedRows, APullOfRowsWritesTheseAndNothingElse) {
  MUST("SelectRows: the pull that is submitted next writes these rows alone.");
  constexpr int32_t kRows = 5003, kRow = 64;
  Members members(GetParam(), 1);
  const TestBucket bucket = members.Start({PlainBucket(41, kRows * kRow, kRow)})[0];
  ASSERT_OK(members.Begin(0, 1));
  ASSERT_OK(members.Push(0, bucket, bucket.Gradient(0, 1)));
  std::vector<float> whole;
  ASSERT_OK(members.Pull(0, bucket, &whole));
  std::vector<std::vector<int32_t>> lists = {{0}, {kRows - 1}, {0, 1, 2, 777, 4000, kRows - 1}, {}};
  for (int32_t row = 0; row < kRows; row += 3) lists.back().push_back(row);
  lists.emplace_back();
  lists.back().reserve(1);  // no row at all
  for (const auto& rows : lists) {
    std::vector<float> expected = bucket.Filled(-9), got = expected;
    for (const int32_t row : rows) {
      std::copy_n(whole.data() + row * kRow, kRow, expected.data() + row * kRow);
    }
    ASSERT_OK(members.Pull(0, bucket, &got, &rows));
    EXPECT_TRUE(SameBits(got, expected)) << rows.size() << " rows";
  }
}

SERVED_SUITE(ServedSync);
SERVED_SUITE(ServedAsync);
SERVED_SUITE(ServedRows);

}  // namespace
}  // namespace engine::conform
