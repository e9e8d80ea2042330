// What every communicator that moves data must do when something goes wrong between ranks.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tools/conform/communicator/communicator_rig.h"
#include "tools/conform/contract.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/communicator.h";

using Clock = std::chrono::steady_clock;

// Where all ranks must submit in one order.
class CommunicatorOrder : public testing::Test {
 protected:
  void SetUp() override {
    if (World(OneSize(2, 2)).traits().ordered == 0) GTEST_SKIP() << "traits().ordered is 0";
  }
};

// Where peers see keys. A library that moves data alone, as NCCL, has no place for them.
class CommunicatorKeys : public CommunicatorOrder {
 protected:
  void SetUp() override {
    CommunicatorOrder::SetUp();
    if (IsSkipped()) return;
    World world(OneSize(2, 2));
    std::atomic<int> refused = 0;
    RunRanks(world.size(), [&](int rank) {
      TransferBuffers buffers({.count = 1}, rank, world.size());
      const Transfer transfer = buffers.MakeTransfer(0, rank == world.size() - 1 ? 8 : 7, 3000);
      refused += SubmitAndWait(world.rank(rank), transfer).ok() ? 0 : 1;
    });
    if (refused == 0) GTEST_SKIP() << "no rank sees keys of others";
  }
};

const Status kReason = Status::Error(StatusCode::kStorage, "the disk is full");

TEST(CommunicatorFailure, AbortFailsPendingAndLaterTransfersWithTheFirstReason) {
  MUST(
      "Abort makes every pending and later Work fail with `reason` within a second; the first "
      "reason stays, and every wait returns it.");
  for (const int size : Sizes(2, 3)) {
    World world(size);
    RunRanks(size, [&](int rank) {
      if (rank != size - 1) return;  // never submit, so that the last one stays pending
      std::deque<TransferBuffers> buffers;
      std::vector<Work*> works;
      Communicator& communicator = world.rank(rank);
      for (uint64_t i = 0; i < 6; ++i) {
        buffers.emplace_back(TransferCase{.count = 5000}, rank, size);
        works.push_back(MustSubmit(communicator, buffers[i].MakeTransfer(i)));
      }
      // The first one is under way; where that is not known, probably.
      const auto enough = Clock::now() + std::chrono::seconds(1);
      while (works[0]->started_ns() == 0 && Clock::now() < enough) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const auto start = Clock::now();
      std::thread([&] {
        communicator.Abort(kReason);
        communicator.Abort(Status::Error(StatusCode::kInternal, "a later reason"));
      }).join();
      for (Work* work : works) {
        const Status status = work->WaitHost(5000);
        if (work->state() == WorkState::kPending) {
          ADD_FAILURE() << "5 s after Abort a transfer is still pending";
          return world.Destroy(rank);  // its buffers are in use until then
        }
        EXPECT_EQ(status.code(), kReason.code());
        EXPECT_STREQ(status.message(), kReason.message());
        EXPECT_EQ(work->state(), WorkState::kFailed);
        EXPECT_EQ(work->WaitHost(0).code(), kReason.code()) << "an error is returned every time";
        work->Release();
      }
      EXPECT_LT(Clock::now() - start, kPromptly);
      const Status later = ExpectRefused(communicator, buffers[0].MakeTransfer(6));
      EXPECT_STREQ(later.message(), kReason.message());
    });
  }
}

// A waiter that sleeps learns of an abort elsewhere.
TEST(CommunicatorFailure, AnAbortElsewhereEndsEveryRank) {
  SHOULD(
      "When a rank aborts or its process dies, the transfers of others that need it "
      "should fail within a second, with kPeerLost and its rank, and not only by their "
      "deadline.");
  const int size = OneSize(2, 3);
  World world(size);
  RankBarrier submitted(size);
  const auto start = Clock::now();
  RunRanks(size, [&](int rank) {
    TransferBuffers buffers({.count = 300000}, rank, size);
    if (rank == 0) {
      submitted.Wait(0);
      return world.rank(0).Abort(kReason);
    }
    Work* const work = MustSubmit(world.rank(rank), buffers.MakeTransfer(0, 0, 10000));
    submitted.Wait(rank);
    ExpectError(work->WaitHost(20000), StatusCode::kPeerLost, 0);
    work->Release();
  });
  EXPECT_LT(Clock::now() - start, kPromptly);
}

// What the others are told when the last rank takes no part.
void WithoutTheLastRank(int size, const std::function<void(Communicator&, const Status&)>& expect) {
  constexpr int64_t kTimeoutMs = 200;
  World world(size);
  const auto start = Clock::now();
  RunRanks(size - 1, [&](int rank) {
    TransferBuffers buffers({.count = 1000}, rank, size);
    const Transfer transfer = buffers.MakeTransfer(0, 0, kTimeoutMs);
    expect(world.rank(rank), SubmitAndWait(world.rank(rank), transfer));
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(kTimeoutMs));
    EXPECT_LT(Clock::now() - start, kPromptly);
  });
}

TEST(CommunicatorFailure, ARankThatNeverSubmitsIsATimeout) {
  MUST(
      "A Work fails with kTimeout when for timeout_ms nothing that it waits for has moved, and "
      "not before; a failed communicator fails every later call with that reason.");
  for (const int size : Sizes(2, 4)) {
    WithoutTheLastRank(size, [](Communicator& communicator, const Status& status) {
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
      EXPECT_EQ(ExpectRefused(communicator, {.kind = TransferKind::kBarrier}).code(),
                StatusCode::kTimeout);
    });
  }
}

// All others name it, also those that hear of it from another rank.
TEST(CommunicatorFailure, ATimeoutNamesTheRankThatIsMissing) {
  SHOULD("A kTimeout should name the rank that has not moved, on every rank.");
  const int size = OneSize(2, 4);
  if (size == 0) GTEST_SKIP() << "of one rank (-n 1) there is nothing to see";
  WithoutTheLastRank(size, [size](Communicator&, const Status& status) {
    EXPECT_EQ(status.rank(), size - 1) << status.message();
  });
}

TEST(CommunicatorFailure, DestructionWithWorkInFlightFailsIt) {
  MUST("The destructor ends every pending Work, with kAborted, before it returns.");
  World world(OneSize(2, 2));
  RunRanks(1, [&](int rank) {
    std::deque<TransferBuffers> buffers;
    std::vector<Work*> works;
    for (uint64_t i = 0; i < 5; ++i) {
      buffers.emplace_back(TransferCase{.count = 100000}, rank, world.size());
      works.push_back(MustSubmit(world.rank(rank), buffers[i].MakeTransfer(i)));
    }
    works.back()->Release();
    works.pop_back();
    world.Destroy(rank);
    for (Work* work : works) {
      EXPECT_EQ(work->state(), WorkState::kFailed);
      EXPECT_EQ(work->WaitHost(0).code(), StatusCode::kAborted);
      work->Release();
    }
  });
}

// What the first of `present` ranks is told when the last one does not come.
std::vector<Status> CreationWithoutTheLastRank() {
  constexpr int64_t kDeadlineMs = 200;
  const int size = OneSize(2, 3);
  return World::CreationErrors(
      UnderTest().plugin, size - 1, size, [](int) { return OptionValues::Overrides(); },
      kDeadlineMs);
}

TEST(CommunicatorFailure, CreationWithoutAllRanksFailsByItsDeadline) {
  MUST(
      "Creation is collective and fails with kRendezvous when a rank has not come by "
      "RankInfo::rendezvous_timeout_ms.");
  const auto start = Clock::now();
  for (const Status& error : CreationWithoutTheLastRank()) {
    EXPECT_EQ(error.code(), StatusCode::kRendezvous) << error.message();
  }
  EXPECT_LT(Clock::now() - start, kPromptly);
}

TEST(CommunicatorFailure, CreationWithoutAllRanksNamesTheMissing) {
  SHOULD("The error of a creation should name the first rank that has not come.");
  const int missing = OneSize(2, 3) - 1;
  for (const Status& error : CreationWithoutTheLastRank()) {
    EXPECT_EQ(error.rank(), missing) << error.message();
    EXPECT_THAT(error.message(), ::testing::HasSubstr("rank " + std::to_string(missing)));
  }
}

// The engine keeps the order the same on all ranks; if it did not, no rank may get a wrong result.
TEST_F(CommunicatorOrder, TransfersInDifferentOrderAreAnErrorAndNeverAWrongResult) {
  SHOULD(
      "Ranks that submit different transfers at one place of the order should get an "
      "error (kInvalidArgument), not a wrong result.");
  const TransferCase cases[][2] = {
      {{.count = 1000}, {.count = 1001}},
      {{.count = 1000}, {.dtype = DType::kInt32, .count = 1000}},
      {{.count = 1000}, {.reduction = Reduction::kMax, .count = 1000}},
      {{.count = 1000}, {.kind = TransferKind::kAllGather, .count = 1000}},
  };
  const int size = OneSize(2, 2);
  for (const auto& [most, last] : cases) {
    World world(size);
    if ((world.traits().kinds & Bit(last.kind)) == 0) continue;
    RunRanks(size, [&, &of_most = most, &of_last = last](int rank) {
      const TransferCase& own = rank == size - 1 ? of_last : of_most;
      TransferBuffers buffers(own, rank, size);
      const Transfer transfer = buffers.MakeTransfer(0, 0, 1000);
      EXPECT_FALSE(SubmitAndWait(world.rank(rank), transfer).ok()) << own.Words();
    });
  }
}

// What cannot be told apart by size or kind is told apart by its key.
TEST_F(CommunicatorKeys, DifferentKeysAreRefusedOnEveryRank) {
  SHOULD(
      "A communicator that sees the key of a peer should refuse another with kInvalidArgument, "
      "on every rank.");
  for (const int64_t count : {1, 300007}) {
    RunWorlds(2, 3, [&](World& world, int rank) {
      TransferBuffers buffers({.count = count}, rank, world.size());
      const Transfer transfer = buffers.MakeTransfer(0, rank == world.size() - 1 ? 8 : 7, 3000);
      const Status status = SubmitAndWait(world.rank(rank), transfer);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
          << "rank " << rank << " of " << world.size() << ", " << count
          << " elements: " << (status.ok() ? "a sum of different things" : status.message());
    });
  }
}

TEST_F(CommunicatorKeys, TwoTransfersInOppositeOrderAreRefusedOnEveryRank) {
  SHOULD(
      "A communicator that sees the key of a peer should refuse another with kInvalidArgument, "
      "on every rank.");
  RunWorlds(2, 3, [](World& world, int rank) {
    TransferBuffers first({.count = 5000}, rank, world.size()),
        second({.count = 5000}, rank, world.size());
    Transfer transfers[] = {first.MakeTransfer(0, 1, 3000), second.MakeTransfer(1, 2, 3000)};
    if (rank == world.size() - 1) std::swap(transfers[0].key, transfers[1].key);
    Work* works[2] = {};
    for (int i = 0; i < 2; ++i) {
      const Status status = world.rank(rank).Submit(transfers[i], &works[i]);
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << status.message();
    }
    for (Work* work : works) {
      if (!work) continue;
      const Status status = work->WaitHost(40000);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
          << "rank " << rank << " of " << world.size() << ": " << status.message();
      work->Release();
    }
  });
}

}  // namespace
}  // namespace engine::conform
