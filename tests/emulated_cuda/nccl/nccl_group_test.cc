// Several transfers in one launch.

#include "engine/ext/grouped_transfers.h"
#include "tests/emulated_cuda/nccl/nccl_rig.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

Status TrySubmit(Communicator& communicator, Array<const Transfer> transfers, Work** work) {
  return Query<GroupedTransfers>(communicator)->SubmitGroup(transfers, work);
}

Status RunGroup(Communicator& communicator, Array<const Transfer> transfers) {
  Work* work = nullptr;
  const Status submitted = TrySubmit(communicator, transfers, &work);
  if (!submitted.ok()) return submitted;
  const Status status = work->WaitHost(30000);
  work->Release();
  return status;
}

// Buffers for in-place sums of several sizes.
struct Sums {
  explicit Sums(const std::vector<size_t>& counts, int64_t timeout_ms = 30000) {
    for (const size_t count : counts) data.emplace_back(count, 1.0f);
    for (std::vector<float>& values : data) {
      transfers.push_back({.send = values.data(),
                           .recv = values.data(),
                           .count = static_cast<int64_t>(values.size()),
                           .bucket = 3,
                           .sequence = 40 + transfers.size(),
                           .timeout_ms = timeout_ms});
    }
  }
  void ExpectAll(float sum) const {
    for (const auto& values : data) EXPECT_EQ(values, std::vector<float>(values.size(), sum));
  }
  std::vector<std::vector<float>> data;
  std::vector<Transfer> transfers;
};

// One of every kind and of several sizes, one of them empty, one larger than what is staged at
// once.
TEST(NcclGroup, OfMixedKindsAndSizesMovesAllOfThem) {
  constexpr int kRanks = 3;
  World world(kNcclPlugin, kRanks);
  std::vector<TransferCase> cases;
  for (const TransferCase& one : AllCases(world.rank(0).traits(), kRanks, {0, 1, 257, 70001})) {
    if (one.kind != TransferKind::kBarrier) cases.push_back(one);
  }
  RunRanks(kRanks, [&](int rank) {
    constexpr size_t kAtOnce = 7;
    for (size_t begin = 0; begin < cases.size(); begin += kAtOnce) {
      std::vector<TransferBuffers> buffers;
      std::vector<Transfer> transfers;
      for (size_t i = begin; i < std::min(begin + kAtOnce, cases.size()); ++i) {
        buffers.emplace_back(cases[i], rank, kRanks).Fill();
        transfers.push_back(buffers.back().MakeTransfer(i));
      }
      const Status status = RunGroup(world.rank(rank), transfers);
      ASSERT_TRUE(status.ok()) << status.message();
      for (size_t i = 0; i < buffers.size(); ++i) {
        ASSERT_TRUE(buffers[i].Check()) << cases[begin + i].Words();
      }
    }
  });
}

TEST(NcclGroup, HasOnePlaceAmongOtherTransfers) {
  OnRanks(2, [&](World& world, int rank) {
    std::vector<float> before(100, 1);
    for (int round = 0; round < 10; ++round) {
      // What comes next uses the result of what came before, and nobody waits in between.
      Sums sums({100, 1, 30});
      std::fill(before.begin(), before.end(), 1.0f);
      sums.transfers[0].send = before.data();
      std::vector<float> after(100);
      Work* works[3] = {};
      works[0] =
          MustSubmit(world.rank(rank),
                     {.send = before.data(), .recv = before.data(), .count = 100, .sequence = 39});
      const Status status = TrySubmit(world.rank(rank), sums.transfers, &works[1]);
      ASSERT_TRUE(status.ok()) << status.message();
      works[2] = MustSubmit(
          world.rank(rank),
          {.send = sums.data[0].data(), .recv = after.data(), .count = 100, .sequence = 43});
      for (Work* work : works) EXPECT_TRUE(work->WaitHost(30000).ok());
      for (Work* work : works) work->Release();
      EXPECT_EQ(after, std::vector<float>(100, 8));
      EXPECT_EQ(sums.data[2], std::vector<float>(30, 2));
    }
  });
}

TEST(NcclGroup, IsBetweenTheWorkBeforeItAndTheWorkAfterIt) {
  OnRanks(2, [&](World& world, int rank) {
    TestStream producer(rank), consumer(rank);
    std::atomic<bool> gate{false};
    Sums sums({500, 20});
    sums.transfers[1].stream = &producer;  // the whole group waits for it
    producer.Hold(&gate);
    producer.Fill(&sums.data[0], 4);
    producer.Fill(&sums.data[1], 5);
    Work* work = nullptr;
    const Status status = TrySubmit(world.rank(rank), sums.transfers, &work);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(work->WaitStream(&consumer).ok());
    std::vector<float> seen[2] = {std::vector<float>(500), std::vector<float>(20)};
    for (const size_t i : {0, 1}) consumer.Copy(&seen[i], &sums.data[i]);
    EXPECT_EQ(work->state(), WorkState::kPending);
    gate = true;
    EXPECT_TRUE(consumer.Synchronize(0).ok());
    EXPECT_EQ(seen[0], std::vector<float>(500, 8));
    EXPECT_EQ(seen[1], std::vector<float>(20, 10));
    EXPECT_TRUE(work->WaitHost(30000).ok());
    work->Release();
  });
}

TEST(NcclGroup, OfOneAndOfEmptyOnesIsDone) {
  OnRanks(2, [&](World& world, int rank) {
    for (const std::vector<size_t>& counts :
         {std::vector<size_t>{5}, std::vector<size_t>{0, 0}, std::vector<size_t>{0, 5}}) {
      Sums sums(counts);
      const Status status = RunGroup(world.rank(rank), sums.transfers);
      EXPECT_TRUE(status.ok()) << status.message();
      sums.ExpectAll(2);
    }
  });
}

TEST(NcclGroup, ThatBreaksTheRulesIsRefusedAndNothingHasHappened) {
  OnRanks(2, [&](World& world, int rank) {
    TestStream one(rank), other(rank);
    const auto refused = [&](const char* what, const std::function<void(Sums*)>& change) {
      Sums sums({5, 6});
      change(&sums);
      Work* work = nullptr;
      const Status status = TrySubmit(world.rank(rank), sums.transfers, &work);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << what;
      EXPECT_EQ(work, nullptr) << what;
    };
    refused("empty", [](Sums* sums) { sums->transfers.clear(); });
    refused("a barrier", [](Sums* sums) { sums->transfers[1].kind = TransferKind::kBarrier; });
    refused("a count", [](Sums* sums) { sums->transfers[1].count = -1; });
    refused("no buffer", [](Sums* sums) { sums->transfers[1].recv = nullptr; });
    refused("streams", [&](Sums* sums) {
      sums->transfers[0].stream = &one;
      sums->transfers[1].stream = &other;
    });
    Sums sums({5, 6});
    EXPECT_TRUE(RunGroup(world.rank(rank), sums.transfers).ok());
    sums.ExpectAll(2);
  });
}

// NCCL would hang or mix them up, which the fake reports instead.
TEST(NcclGroup, RanksThatGroupDifferentlyFail) {
  for (const bool same_size : {false, true}) {
    const Promptly promptly;
    OnRanks(2, [&](World& world, int rank) {
      std::vector<size_t> counts = {8, 16};
      if (rank == 1 && same_size) counts = {16, 8};
      Sums sums(counts);
      Status status;
      if (rank == 0 || same_size) {
        status = RunGroup(world.rank(rank), sums.transfers);
      } else {
        for (const Transfer& transfer : sums.transfers) {
          if (status.ok()) status = SubmitAndWait(world.rank(rank), transfer);
        }
      }
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
      EXPECT_THAT(status.message(), HasSubstr("invalid usage"));
    });
  }
}

TEST(NcclGroup, OfWhichOneHangsIsATimeoutOfAll) {
  const Fault fault("absent=1@1");
  const Promptly promptly;
  OnRanks(2, [&](World& world, int rank) {
    Sums sums({1000, 2000, 3000}, 60000);
    sums.transfers[2].timeout_ms = 300;  // the earliest counts
    const Status status = RunGroup(world.rank(rank), sums.transfers);
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
    EXPECT_EQ(status.rank(), -1);
    EXPECT_THAT(status.message(), HasSubstr("group of 3 transfers of 24 kB in all (bucket 3, "
                                            "sequence 40) was not done within 300 ms"));
  });
}

// A group that is begun must be ended, or NCCL would take all that this thread calls later for more
// of it: here the transfers of another communicator.
TEST(NcclGroup, OfWhichNcclRefusesOneLeavesTheThreadWithoutAGroup) {
  World healthy(kNcclPlugin, 1);
  const Fault fault("refuse=0@1");
  World world(kNcclPlugin, 1);
  Sums sums({10, 20, 30});
  Work* work = nullptr;
  const Status status = TrySubmit(world.rank(0), sums.transfers, &work);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_EQ(work, nullptr);
  Sums others({10});
  EXPECT_TRUE(SubmitAndWait(healthy.rank(0), others.transfers[0]).ok());
  EXPECT_EQ(SubmitAndWait(world.rank(0), others.transfers[0]).code(), StatusCode::kInvalidArgument)
      << "the order of ranks is broken";
}

}  // namespace
}  // namespace engine::test
