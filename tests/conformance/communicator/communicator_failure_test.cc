// What every communicator must do when something goes wrong between ranks that are threads.
#include <gmock/gmock.h>

#include <chrono>
#include <latch>
#include <thread>
#include <utility>

#include "tests/conformance/communicator/communicator_rig.h"

namespace engine::test {
namespace {

class CommunicatorFailure : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    traits_ = World(GetParam(), 2).rank(0).traits();
    if (traits_.no_op != 0) GTEST_SKIP() << "nothing fails where nothing is waited for";
  }

  CommunicatorTraits traits_;
};

// Where all ranks must submit in one order.
class CommunicatorOrder : public CommunicatorFailure {
 protected:
  void SetUp() override {
    CommunicatorFailure::SetUp();
    if (traits_.ordered == 0) GTEST_SKIP() << "any order will do";
  }
};

using Clock = std::chrono::steady_clock;

// The promises below are of one second or a deadline; a loaded machine may take longer to notice.
constexpr auto kPromptly = std::chrono::seconds(5);

const Status kReason = Status::Error(StatusCode::kStorage, "the disk is full");

TEST_P(CommunicatorFailure, AbortFailsPendingAndLaterTransfersWithTheFirstReason) {
  for (int size = 2; size <= 3; ++size) {
    World world(GetParam(), size);
    RunRanks(size, [&](int rank) {
      if (rank != size - 1) return;  // never submit, so that the last one stays pending
      std::vector<TransferBuffers> buffers;
      for (int i = 0; i < 6; ++i) buffers.emplace_back(TransferCase{.count = 5000}, rank, size);
      std::vector<Work*> works;
      Communicator& communicator = world.rank(rank);
      for (uint64_t i = 0; i < 6; ++i) {
        works.push_back(MustSubmit(communicator, buffers[i].MakeTransfer(i)));
      }
      const auto start = Clock::now();
      std::thread([&] {
        communicator.Abort(kReason);
        communicator.Abort(Status::Error(StatusCode::kInternal, "a later reason"));
      }).join();
      for (Work* work : works) {
        const Status status = work->WaitHost(20000);
        EXPECT_EQ(status.code(), kReason.code());
        EXPECT_STREQ(status.message(), kReason.message());
        EXPECT_EQ(work->state(), WorkState::kFailed);
        EXPECT_EQ(work->WaitHost(0).code(), kReason.code()) << "an error is returned every time";
        work->Release();
      }
      EXPECT_LT(Clock::now() - start, kPromptly);
      Work* work = nullptr;
      const Status later = communicator.Submit(buffers[0].MakeTransfer(6), &work);
      EXPECT_STREQ(later.message(), kReason.message());
      EXPECT_EQ(work, nullptr);
    });
  }
}

// A waiter that sleeps, and one that runs a callback, both learn of an abort elsewhere.
TEST_P(CommunicatorFailure, AnAbortElsewhereEndsEveryRank) {
  constexpr int kSize = 3;
  World world(GetParam(), kSize);
  std::latch submitted(kSize);
  const auto start = Clock::now();
  RunRanks(kSize, [&](int rank) {
    TransferBuffers buffers({.count = 300000}, rank, kSize);
    if (rank == 0) {
      submitted.arrive_and_wait();
      world.rank(0).Abort(kReason);
      return;
    }
    Work* const work = MustSubmit(world.rank(rank), buffers.MakeTransfer(0));
    submitted.arrive_and_wait();
    const Status status = work->WaitHost(20000);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), 0) << status.message();
    work->Release();
  });
  EXPECT_LT(Clock::now() - start, kPromptly);
}

// The last rank takes no part: all others name it, also those that hear of it from another rank.
TEST_P(CommunicatorFailure, ARankThatNeverSubmitsIsATimeoutThatNamesIt) {
  constexpr int64_t kTimeoutMs = 200;
  for (const int size : {2, 4}) {
    World world(GetParam(), size);
    const auto start = Clock::now();
    RunRanks(size - 1, [&](int rank) {
      TransferBuffers buffers({.count = 1000}, rank, size);
      Transfer transfer = buffers.MakeTransfer(0);
      transfer.timeout_ms = kTimeoutMs;
      const Status status = SubmitAndWait(world.rank(rank), transfer);
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
      EXPECT_EQ(status.rank(), size - 1) << status.message();
      Work* work = nullptr;
      EXPECT_EQ(world.rank(rank).Submit(buffers.MakeTransfer(1), &work).code(),
                StatusCode::kTimeout)
          << "a failed communicator fails every later call";
    });
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(kTimeoutMs));
    EXPECT_LT(Clock::now() - start, kPromptly);
  }
}

TEST_P(CommunicatorFailure, DestructionWithWorkInFlightFailsIt) {
  World world(GetParam(), 2);
  std::vector<TransferBuffers> buffers;
  std::vector<Work*> works;
  for (uint64_t i = 0; i < 5; ++i) {
    buffers.emplace_back(TransferCase{.count = 100000}, 0, 2);
    works.push_back(MustSubmit(world.rank(0), buffers[i].MakeTransfer(i)));
  }
  works.back()->Release();
  works.pop_back();
  world.Destroy(0);
  for (Work* work : works) {
    EXPECT_EQ(work->state(), WorkState::kFailed);
    EXPECT_EQ(work->WaitHost(0).code(), StatusCode::kAborted);
    work->Release();
  }
}

TEST_P(CommunicatorFailure, CreationWithoutAllRanksFailsByItsDeadlineAndNamesTheMissing) {
  const auto start = Clock::now();
  const auto errors = World::CreationErrors(
      GetParam(), 2, 3, [](int) { return OptionValues::Overrides(); }, 200);
  for (const Status& error : errors) {
    EXPECT_TRUE(error.code() == StatusCode::kRendezvous || error.code() == StatusCode::kTimeout)
        << error.message();
    EXPECT_EQ(error.rank(), 2);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("rank 2"));
  }
  EXPECT_LT(Clock::now() - start, kPromptly);
}

// The engine keeps the order the same on all ranks; if it did not, no rank may get a wrong result.
TEST_P(CommunicatorOrder, TransfersInDifferentOrderAreAnErrorAndNeverAWrongResult) {
  const TransferCase cases[][2] = {
      {{.count = 1000}, {.count = 1001}},
      {{.count = 1000}, {.dtype = DType::kInt32, .count = 1000}},
      {{.count = 1000}, {.reduction = Reduction::kMax, .count = 1000}},
      {{.count = 1000}, {.kind = TransferKind::kAllGather, .count = 1000}},
  };
  for (const auto& pair : cases) {
    World world(GetParam(), 2);
    RunRanks(2, [&](int rank) {
      TransferBuffers buffers(pair[rank], rank, 2);
      buffers.Fill();
      Transfer transfer = buffers.MakeTransfer(0);
      transfer.timeout_ms = 1000;
      const Status status = SubmitAndWait(world.rank(rank), transfer);
      EXPECT_FALSE(status.ok()) << pair[rank].Words();
    });
  }
}

// What cannot be told apart by size or kind is told apart by its key.
TEST_P(CommunicatorOrder, DifferentKeysAreRefusedOnEveryRank) {
  for (int size = 2; size <= 3; ++size) {
    for (const int64_t count : {1, 300007}) {
      World world(GetParam(), size);
      RunRanks(size, [&](int rank) {
        TransferBuffers buffers({.count = count}, rank, size);
        buffers.Fill();
        Transfer transfer = buffers.MakeTransfer(0, rank == size - 1 ? 8 : 7);
        transfer.timeout_ms = 3000;
        const Status status = SubmitAndWait(world.rank(rank), transfer);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
            << "rank " << rank << " of " << size << ", " << count
            << " elements: " << (status.ok() ? "a sum of different things" : status.message());
      });
    }
  }
}

TEST_P(CommunicatorOrder, TwoTransfersInOppositeOrderAreRefusedOnEveryRank) {
  for (int size = 2; size <= 3; ++size) {
    World world(GetParam(), size);
    RunRanks(size, [&](int rank) {
      TransferBuffers first({.count = 5000}, rank, size), second({.count = 5000}, rank, size);
      Transfer transfers[] = {first.MakeTransfer(0, 1), second.MakeTransfer(1, 2)};
      transfers[0].timeout_ms = transfers[1].timeout_ms = 3000;
      if (rank == size - 1) std::swap(transfers[0].key, transfers[1].key);
      Work* works[2] = {};
      for (int i = 0; i < 2; ++i) {
        const Status status = world.rank(rank).Submit(transfers[i], &works[i]);
        if (!status.ok()) {
          EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
        }
      }
      for (Work* work : works) {
        if (!work) continue;
        const Status status = work->WaitHost(40000);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
            << "rank " << rank << " of " << size << ": " << status.message();
        work->Release();
      }
    });
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorFailure);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorOrder);
const auto kLibraries = ::testing::ValuesIn(PluginPaths({FAILING_COMMUNICATORS}));
INSTANTIATE_TEST_SUITE_P(Libraries, CommunicatorFailure, kLibraries, kNameOfLibrary);
INSTANTIATE_TEST_SUITE_P(Libraries, CommunicatorOrder, kLibraries, kNameOfLibrary);

}  // namespace
}  // namespace engine::test
