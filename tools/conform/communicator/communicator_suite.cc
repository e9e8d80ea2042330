// What every communicator must do.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kit/deadline.h"
#include "tools/conform/allocation_count.h"
#include "tools/conform/communicator/communicator_rig.h"
#include "tools/conform/contract.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/communicator.h";

constexpr int kMaxWorld = 4;

// What is to be seen between ranks only.
class CommunicatorRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (size_ == 0) GTEST_SKIP() << "of one rank (-n 1) there is nothing to see";
  }
  const int size_ = OneSize(2, 2);
};

// Of either sign and of magnitudes from 2^-12 to 2^12, so that sums round.
float RandomOfAnySize(std::mt19937& random) {
  const uint32_t bits = static_cast<uint32_t>(random());
  const float fraction = 1.0f + static_cast<float>(bits >> 9) * 0x1p-23f;
  const float value = std::ldexp(fraction, static_cast<int>(bits % 25) - 12);
  return bits & 0x100 ? -value : value;
}

TEST(Communicator, TraitsAreCoherent) {
  MUST(
      "traits() names kinds and dtypes that there are, all-reduce and float32 among them; with "
      "one rank a transfer is a local copy, so no_op is 0.");
  for (const int size : Sizes(1, kMaxWorld)) {
    World world(size);
    const CommunicatorTraits traits = world.traits();
    EXPECT_TRUE(traits.kinds & Bit(TransferKind::kAllReduce));
    EXPECT_TRUE(traits.dtypes & Bit(DType::kFloat32));
    EXPECT_EQ(traits.kinds >> (static_cast<int>(TransferKind::kPull) + 1), 0u);
    EXPECT_EQ(traits.dtypes >> (static_cast<int>(DType::kFloat16) + 1), 0u);
    EXPECT_LE(traits.ordered, 1u);
    EXPECT_LE(traits.no_op, size > 1 ? 1u : 0u) << "one rank has nothing to measure";
  }
}

TEST(Communicator, LeavesNoDescriptorOpen) {
  SHOULD(
      "Several may live in a process, at once and one after another: deleting one gives "
      "back its descriptors, threads and memory.");
  const auto run_once = [] {
    {
      World world(Sizes(1, 2).back());
      RunRanks(world.size(), [&](int rank) {
        EXPECT_OK(SubmitAndWait(world.rank(rank), {.kind = TransferKind::kBarrier}));
      });
    }
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto open = run_once();  // what a library opens for good, too
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run_once(), open);
}

// Submits all, with keys 1, 2, ..., waits for them, on odd ranks from the last on, and looks at
// what they brought.
void RunTogether(Communicator& communicator, int rank, std::vector<TransferBuffers>& buffers,
                 uint64_t* sequence) {
  std::vector<Work*> works;
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i].Fill();
    works.push_back(MustSubmit(communicator, buffers[i].MakeTransfer((*sequence)++, i + 1)));
    if ((i + static_cast<size_t>(rank)) % 8 == 0) std::this_thread::yield();
  }
  for (size_t i = 0; i < works.size(); ++i) {
    const size_t j = rank % 2 ? works.size() - 1 - i : i;
    const Status status = works[j]->WaitHost(kWaitMs);
    EXPECT_TRUE(status.ok()) << buffers[j].transfer_case().Words() << ": " << status.message();
    if (status.ok()) {
      EXPECT_EQ(works[j]->state(), WorkState::kDone);
      EXPECT_TRUE(buffers[j].Check());
    }
    works[j]->Release();
  }
}

// Sizes: none, one, odd, primes; the large ones make implementations cut a transfer.
TEST(Communicator, EveryKindDTypeAndSizeGivesTheRightResult) {
  MUST(
      "A transfer of any kind and dtype of traits(), with any reduction, root and count, in place "
      "or not, gives what TransferKind says.");
  constexpr size_t kTogether = 12;
  for (const int size : Sizes(1, kMaxWorld)) {
    World world(size);
    if (!world.moves_data()) continue;
    const CommunicatorTraits traits = world.traits();
    std::vector<TransferCase> cases = AllCases(traits, size, {0, 1, 7, 4093});
    for (TransferCase& large : AllCases(traits, size, {49153, 300007})) {
      if (large.dtype == DType::kFloat32 && large.reduction == Reduction::kSum) {
        cases.push_back(large);
      }
    }
    RunRanks(size, [&](int rank) {
      uint64_t sequence = 0;
      for (size_t begin = 0; begin < cases.size(); begin += kTogether) {
        std::vector<TransferBuffers> buffers;
        for (size_t i = begin; i < std::min(cases.size(), begin + kTogether); ++i) {
          buffers.emplace_back(cases[i], rank, size);
        }
        RunTogether(world.rank(rank), rank, buffers, &sequence);
      }
    });
  }
}

// Mixed kinds and sizes at once, again and again with the same keys, and ranks out of step.
TEST(Communicator, ManyTransfersInFlightDoNotMixUp) {
  MUST(
      "Any number of transfers may be under way at once, waited for in any order; equal keys have "
      "equal buffers in every step.");
  constexpr int kSteps = 3;
  for (const int size : Sizes(1, kMaxWorld)) {
    World world(size);
    if (!world.moves_data()) continue;
    std::vector<TransferCase> cases = AllCases(world.traits(), size, {1, 50, 3001, 30011});
    std::mt19937 order(UnderTest().seed);
    std::shuffle(cases.begin(), cases.end(), order);
    cases.resize(std::min<size_t>(cases.size(), 60));
    RunRanks(size, [&](int rank) {
      std::vector<TransferBuffers> buffers;
      for (const TransferCase& transfer_case : cases) {
        buffers.emplace_back(transfer_case, rank, size);
      }
      uint64_t sequence = 0;
      for (int step = 0; step < kSteps; ++step) {
        RunTogether(world.rank(rank), rank, buffers, &sequence);
      }
    });
  }
}

// One digest for all sums of a rank.
std::string RandomSums(Communicator& communicator, int rank) {
  std::mt19937 random(UnderTest().seed + static_cast<unsigned>(rank));
  std::string sums;
  uint64_t sequence = 0;
  for (const size_t count : {3, 5000, 120011}) {
    std::vector<uint8_t> bytes(count * sizeof(float));
    for (size_t i = 0; i < count; ++i) {
      const float x = RandomOfAnySize(random);
      std::memcpy(bytes.data() + i * sizeof(float), &x, sizeof(float));
    }
    DeviceBytes data(rank, bytes.size());
    data.Set(bytes);
    EXPECT_OK(SubmitAndWait(communicator, {.send = data.data(),
                                           .recv = data.data(),
                                           .count = static_cast<int64_t>(count),
                                           .sequence = sequence++}));
    bytes = data.Get();
    sums.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return std::to_string(std::hash<std::string>()(sums));
}

// Sums of floats depend on their order.
TEST(Communicator, ASumHasTheSameBitsOnAllRanks) {
  MUST(
      "The result of a reduction is the same on all ranks, to the bit: else their parameters "
      "drift apart.");
  for (const int size : Sizes(1, kMaxWorld)) {
    World world(size);
    if (!world.moves_data()) continue;
    RankBarrier compared(size);
    RunRanks(size, [&](int rank) {
      const std::string sums = RandomSums(world.rank(rank), rank);
      compared.Arrive(rank, sums);
      EXPECT_EQ(sums, compared.Await(0)) << "rank " << rank << " of " << size;
    });
  }
}

TEST(Communicator, ASumHasTheSameBitsInEveryRun) {
  SHOULD(
      "A reduction should have one order, so that a run that is repeated has the same "
      "results.");
  for (const int size : Sizes(1, kMaxWorld)) {
    std::vector<std::string> first(static_cast<size_t>(size));
    for (int run = 0; run < 2; ++run) {
      World world(size);
      if (!world.moves_data()) break;
      RunRanks(size, [&](int rank) {
        std::string& before = first[static_cast<size_t>(rank)];
        const std::string sums = RandomSums(world.rank(rank), rank);
        if (run == 0) before = sums;
        EXPECT_EQ(sums, before) << "rank " << rank << " of " << size;
      });
    }
  }
}

TEST(Communicator, OnDoneCallsExactlyOnceBeforeAndAfterTheEnd) {
  MUST(
      "OnDone calls back exactly once when the transfer is terminal, also after an "
      "error, at once if it is terminal already.");
  for (const int size : Sizes(1, 3)) {
    World world(size);
    std::vector<std::atomic<int>> early(static_cast<size_t>(size)), late(early.size());
    const auto count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
    RankBarrier hooked(size);
    RunRanks(size, [&](int rank) {
      const auto i = static_cast<size_t>(rank);
      TransferBuffers a({.count = 100}, rank, size), b({.count = 100}, rank, size);
      Communicator& communicator = world.rank(rank);
      // Nobody is done before rank 0 submits.
      for (int other = 1; rank == 0 && other < size; ++other) (void)hooked.Await(other);
      Work* const first = MustSubmit(communicator, a.MakeTransfer(0));
      first->OnDone(count, &early[i]);
      hooked.Arrive(rank);
      Work* const second = MustSubmit(communicator, b.MakeTransfer(1));
      EXPECT_OK(first->WaitHost(kWaitMs));
      EXPECT_OK(second->WaitHost(kWaitMs));
      second->OnDone(count, &late[i]);
      EXPECT_EQ(late[i], 1) << "a terminal work calls at once";
      first->Release();
      second->Release();
      world.Destroy(rank);  // joins whoever calls back
      EXPECT_EQ(early[i], 1) << "rank " << rank;
      EXPECT_EQ(late[i], 1) << "rank " << rank;
    });
  }
}

TEST(Communicator, WorkReleasedBeforeItsEndStillCompletes) {
  MUST("A Work that is released before it is terminal is kept alive until it is.");
  for (const int size : Sizes(1, 3)) {
    std::deque<std::latch> latches;  // outlive the threads that call back
    for (int rank = 0; rank < size; ++rank) latches.emplace_back(8);
    World world(size);
    const bool checked = world.moves_data();
    RunRanks(size, [&](int rank) {
      std::vector<TransferBuffers> buffers;
      std::latch& done = latches[static_cast<size_t>(rank)];
      for (uint64_t i = 0; i < 8; ++i) {
        buffers.emplace_back(TransferCase{.count = 2000}, rank, size);
        Work* const work = MustSubmit(world.rank(rank), buffers.back().MakeTransfer(i));
        work->OnDone([](void* latch) { static_cast<std::latch*>(latch)->count_down(); }, &done);
        work->Release();
      }
      done.wait();
      for (const TransferBuffers& buffer : buffers) EXPECT_TRUE(!checked || buffer.Check());
    });
  }
}

TEST(Communicator, ReleaseGivesAWorkBack) {
  MUST("Release ends the caller's use: memory does not grow with the number of transfers.");
  constexpr int kTransfers = 2000;
  World world(Sizes(1, 2).back());
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  int64_t before = 0;
  RunRanks(world.size(), [&](int rank) {
    for (uint64_t i = 0; i < 2 * kTransfers; ++i) {
      if (rank == 0 && i == kTransfers) before = in_use();
      ASSERT_OK(SubmitAndWait(world.rank(rank), {.kind = TransferKind::kBarrier, .sequence = i}));
    }
  });
  // No Work has less than a pointer to its functions and a state.
  const int64_t grown = before > 0 ? in_use() - before : 0;
  EXPECT_LT(grown, kTransfers * int64_t{16});
}

TEST_F(CommunicatorRanks, ABarrierWaitsForEveryRank) {
  MUST("A barrier is done when every rank has submitted it.");
  World world(size_);
  if ((world.traits().kinds & Bit(TransferKind::kBarrier)) == 0 || !world.moves_data()) {
    GTEST_SKIP() << "traits() has no barrier, or no_op";
  }
  RankBarrier looked(size_);
  RunRanks(size_, [&](int rank) {
    for (int other = 1; rank == 0 && other < size_; ++other) (void)looked.Await(other);
    Work* const work = MustSubmit(world.rank(rank), {.kind = TransferKind::kBarrier});
    if (rank > 0) {
      EXPECT_EQ(work->WaitHost(50).code(), StatusCode::kTimeout);
      looked.Arrive(rank);
    }
    ExpectDone(work);
  });
}

TEST_F(CommunicatorRanks, WaitThatGivesUpLeavesTheTransferAlone) {
  MUST("WaitHost returns kTimeout if the transfer is still pending, which goes on.");
  World world(size_);
  if (!world.moves_data()) GTEST_SKIP() << "traits().no_op: nothing is ever pending";
  RankBarrier gave_up(size_);
  RunRanks(size_, [&](int rank) {
    TransferBuffers buffers({.count = 10}, rank, size_);
    if (rank > 0) (void)gave_up.Await(0);
    Work* const work = MustSubmit(world.rank(rank), buffers.MakeTransfer(0));
    if (rank == 0) {
      EXPECT_EQ(work->state(), WorkState::kPending);
      EXPECT_EQ(work->WaitHost(0).code(), StatusCode::kTimeout);
      EXPECT_EQ(work->WaitHost(20).code(), StatusCode::kTimeout);
      EXPECT_EQ(work->state(), WorkState::kPending);
      gave_up.Arrive(0);
    }
    EXPECT_OK(work->WaitHost(kWaitMs));
    EXPECT_OK(work->WaitStream(nullptr));
    EXPECT_TRUE(buffers.Check());
    work->Release();
  });
}

TEST(Communicator, ATransferStartsBetweenItsSubmissionAndItsEnd) {
  MUST(
      "started_ns() is on CLOCK_MONOTONIC, between Submit and the end, and stays; 0 if it is not "
      "known.");
  RunWorlds(1, 3, [](World& world, int rank) {
    for (const int64_t count : {1, 300007}) {
      TransferBuffers buffers({.count = count}, rank, world.size());
      const int64_t before = kit::MonotonicNs();
      Work* const work =
          MustSubmit(world.rank(rank), buffers.MakeTransfer(static_cast<uint64_t>(count != 1)));
      const int64_t early = work->started_ns();
      EXPECT_OK(work->WaitHost(kWaitMs));
      const int64_t started = work->started_ns(), after = kit::MonotonicNs();
      EXPECT_TRUE(early == 0 || early == started) << "a transfer starts once";
      EXPECT_TRUE(started == 0 || (before <= started && started <= after));
      work->Release();
    }
  });
}

// The others submit nothing until rank 0 has looked, so only so many transfers can be under way.
TEST_F(CommunicatorRanks, AQueuedTransferHasNotStarted) {
  MUST("started_ns() is 0 while no byte was handed on.");
  World world(size_);
  const uint32_t in_flight = world.traits().max_in_flight;
  if (!world.moves_data() || in_flight == 0) {
    GTEST_SKIP() << "traits().max_in_flight: nothing is ever queued";
  }
  RankBarrier looked(size_);
  RunRanks(size_, [&](int rank) {
    std::deque<TransferBuffers> buffers;
    std::vector<Work*> works;
    if (rank > 0) (void)looked.Await(0);
    for (uint64_t i = 0; i <= in_flight; ++i) {
      buffers.emplace_back(TransferCase{.count = 10}, rank, size_);
      works.push_back(MustSubmit(world.rank(rank), buffers[i].MakeTransfer(i)));
    }
    if (rank == 0) {
      EXPECT_EQ(works.front()->WaitHost(20).code(), StatusCode::kTimeout);
      EXPECT_EQ(works.back()->started_ns(), 0);
      looked.Arrive(0);
    }
    for (Work* work : works) ExpectDone(work);
  });
}

// What is queued at once takes longer than its timeout, and moves all the time.
TEST_F(CommunicatorRanks, ATransferBehindOthersThatMoveIsNotLate) {
  MUST(
      "A transfer is late when nothing that it waits for has moved for timeout_ms: not while "
      "transfers before it move.");
  constexpr int kCount = 12;
  RunWorlds(2, 2, [](World& world, int rank) {
    std::deque<TransferBuffers> buffers;
    std::vector<Work*> works;
    for (uint64_t i = 0; i < kCount; ++i) {
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(125));
      buffers.emplace_back(TransferCase{.count = 10}, rank, world.size());
      works.push_back(MustSubmit(world.rank(rank), buffers.back().MakeTransfer(i, 0, 1000)));
    }
    for (Work* work : works) ExpectDone(work);
  });
}

TEST(Communicator, BrokenTransfersAreRefusedWithoutAWork) {
  SHOULD(
      "Submit should refuse a count below 0 and a timeout_ms of 0 with kInvalidArgument "
      "and make no Work; that is no failure of the communicator.");
  RunWorlds(1, 1, [](World& world, int rank) {
    DeviceBytes data(rank, 4 * sizeof(float));
    data.Set(std::vector<uint8_t>(data.size()));
    const Transfer valid{.send = data.data(), .recv = data.data(), .count = 4};
    Transfer negative = valid, impatient = valid;
    negative.count = -1;
    impatient.timeout_ms = 0;
    for (const Transfer& broken : {negative, impatient}) {
      EXPECT_EQ(ExpectRefused(world.rank(rank), broken).code(), StatusCode::kInvalidArgument);
    }
    EXPECT_OK(SubmitAndWait(world.rank(rank), valid));
  });
}

TEST(Communicator, AbortIsRemembered) {
  MUST("After Abort every later call fails with the first reason.");
  RunWorlds(1, 1, [](World& world, int rank) {
    world.rank(rank).Abort(Status::Error(StatusCode::kStorage, "the disk is full"));
    const Status status = ExpectRefused(world.rank(rank), {.kind = TransferKind::kBarrier});
    const bool of_another = world.size() > 1 && status.code() == StatusCode::kPeerLost;
    EXPECT_TRUE(of_another || status.message() == std::string("the disk is full"));
  });
}

TEST_F(CommunicatorRanks, SubmitAndReleaseDoNotAllocateOnceWarm) {
  SHOULD(
      "Submit and Release should allocate nothing once as many transfers have been "
      "under way: they are called within a step.");
  RunWorlds(2, 2, [](World& world, int rank) {
    std::deque<TransferBuffers> buffers;
    for (int i = 0; i < 6; ++i) {
      buffers.emplace_back(TransferCase{.count = 9000 * i}, rank, world.size());
    }
    uint64_t sequence = 0;
    for (int step = 0; step < 4; ++step) {
      Work* works[6] = {};
      const AllocationCounter counter;
      for (size_t i = 0; i < 6; ++i) {
        const Transfer transfer = buffers[i].MakeTransfer(sequence++, i + 1);
        EXPECT_OK(world.rank(rank).Submit(transfer, &works[i]));
      }
      EXPECT_TRUE(step == 0 || counter.count() == 0)
          << counter.count() << " allocations in step " << step;
      // Who waits may do the work of the implementation's threads meanwhile.
      for (Work* work : works) EXPECT_OK(work->WaitHost(kWaitMs));
      const AllocationCounter releases;
      for (Work* work : works) work->Release();
      EXPECT_EQ(releases.count(), 0u);
    }
  });
}

}  // namespace
}  // namespace engine::conform
