// What every communicator must do. The libraries are those of ENGINE_CONFORMANCE_PLUGINS, else the
// ones of this build.
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <latch>
#include <random>
#include <thread>

#include "tests/conformance/communicator/communicator_rig.h"
#include "tools/conform/allocation_count.h"

namespace engine::test {
namespace {

constexpr int kMaxWorld = 4;

// What holds in worlds of any size.
class CommunicatorConformance : public ::testing::TestWithParam<Worlds> {
 protected:
  void SetUp() override {
    ExpectDescribed(path(), PluginKind::kCommunicator);
    RecordProperty("library", path());
  }

  static const std::string& path() { return GetParam().path; }
  static int least() { return GetParam().least; }
  static int most(int limit = kMaxWorld) { return std::min(limit, GetParam().most); }
};

// What is to be seen in worlds of one size only.
class CommunicatorOneRank : public ::testing::TestWithParam<std::string> {};
class CommunicatorPair : public ::testing::TestWithParam<std::string> {};

// Of either sign and of magnitudes from 2^-12 to 2^12, so that sums round.
float RandomOfAnySize(std::mt19937& random) {
  const uint32_t bits = static_cast<uint32_t>(random());
  const float fraction = 1.0f + static_cast<float>(bits >> 9) * 0x1p-23f;
  const float value = std::ldexp(fraction, static_cast<int>(bits % 25) - 12);
  return bits & 0x100 ? -value : value;
}

TEST_P(CommunicatorConformance, TraitsAreCoherent) {
  for (int size = least(); size <= most(); ++size) {
    World world(path(), size);
    for (int rank = 0; rank < size; ++rank) {
      const CommunicatorTraits traits = world.rank(rank).traits();
      EXPECT_TRUE(traits.kinds & Bit(TransferKind::kAllReduce));
      EXPECT_TRUE(traits.dtypes & Bit(DType::kFloat32));
      EXPECT_EQ(traits.kinds >> (static_cast<int>(TransferKind::kBarrier) + 1), 0u);
      EXPECT_EQ(traits.dtypes >> (static_cast<int>(DType::kFloat16) + 1), 0u);
      EXPECT_LE(traits.ordered, 1u);
      EXPECT_LE(traits.no_op, size > 1 ? 1u : 0u) << "one rank has nothing to measure";
    }
  }
}

// Communicators come and go while a process lives.
TEST_P(CommunicatorConformance, LeavesNoDescriptorOpen) {
  const auto run_once = [] {
    {
      World world(path(), most(2));
      RunRanks(world.size(), [&](int rank) {
        const Status status = SubmitAndWait(world.rank(rank), {.kind = TransferKind::kBarrier});
        EXPECT_TRUE(status.ok()) << status.message();
      });
    }
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto open = run_once();  // what a library opens for good, too
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run_once(), open);
}

// Submits all, with keys 1, 2, ..., waits for them, on odd ranks from the last on, and looks at what
// they brought.
void RunTogether(Communicator& communicator, int rank, std::vector<TransferBuffers>& buffers,
                 uint64_t* sequence) {
  std::vector<Work*> works;
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i].Fill();
    works.push_back(MustSubmit(communicator, buffers[i].MakeTransfer((*sequence)++, i + 1)));
    ASSERT_NE(works.back(), nullptr);
    if ((i + static_cast<size_t>(rank)) % 8 == 0) std::this_thread::yield();
  }
  for (size_t i = 0; i < works.size(); ++i) {
    const size_t j = rank % 2 ? works.size() - 1 - i : i;
    const Status status = works[j]->WaitHost(30000);
    EXPECT_TRUE(status.ok()) << buffers[j].transfer_case().Words() << ": " << status.message();
    if (status.ok()) {
      EXPECT_EQ(works[j]->state(), WorkState::kDone);
      EXPECT_TRUE(buffers[j].Check());
    }
    works[j]->Release();
  }
}

// Sizes: none, one, odd, primes; the large ones make implementations cut a transfer.
TEST_P(CommunicatorConformance, EveryKindDTypeAndSizeGivesTheRightResult) {
  constexpr size_t kTogether = 12;
  for (int size = least(); size <= most(); ++size) {
    World world(path(), size);
    if (!world.moves_data()) continue;
    const CommunicatorTraits traits = world.rank(0).traits();
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
TEST_P(CommunicatorConformance, ManyTransfersInFlightDoNotMixUp) {
  constexpr int kSteps = 3;
  const unsigned seed = 20240607;
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (int size = least(); size <= most(); ++size) {
    World world(path(), size);
    if (!world.moves_data()) continue;
    std::vector<TransferCase> cases = AllCases(world.rank(0).traits(), size, {1, 50, 3001, 30011});
    std::mt19937 order(seed);
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

// Sums of floats depend on their order: it must be the same on all ranks and in every run.
TEST_P(CommunicatorConformance, SumsAreBitwiseEqualOnAllRanksAndInEveryRun) {
  const unsigned seed = 4711;
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::vector<size_t> counts = {3, 5000, 120011};
  for (int size = least(); size <= most(); ++size) {
    std::vector<std::vector<uint8_t>> reference;  // by count
    for (int run = 0; run < 2; ++run) {
      World world(path(), size);
      if (!world.moves_data()) break;
      std::vector<std::vector<std::vector<uint8_t>>> results(static_cast<size_t>(size));
      RunRanks(size, [&](int rank) {
        std::mt19937 random(seed + static_cast<unsigned>(rank));
        uint64_t sequence = 0;
        for (const size_t count : counts) {
          std::vector<uint8_t> input(count * sizeof(float));
          for (size_t i = 0; i < count; ++i) {
            const float x = RandomOfAnySize(random);
            std::memcpy(input.data() + i * sizeof(float), &x, sizeof(float));
          }
          DeviceBytes data(rank, input.size());
          data.Set(input);
          const Status status =
              SubmitAndWait(world.rank(rank), {.send = data.data(),
                                               .recv = data.data(),
                                               .count = static_cast<int64_t>(count),
                                               .sequence = sequence++});
          ASSERT_TRUE(status.ok()) << status.message();
          results[static_cast<size_t>(rank)].push_back(data.Get());
        }
      });
      if (reference.empty()) reference = results[0];
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_TRUE(results[static_cast<size_t>(rank)] == reference)
            << "rank " << rank << " of " << size << ", run " << run;
      }
    }
  }
}

TEST_P(CommunicatorConformance, OnDoneCallsExactlyOnceBeforeAndAfterTheEnd) {
  for (int size = least(); size <= most(3); ++size) {
    World world(path(), size);
    std::vector<std::atomic<int>> early(static_cast<size_t>(size)), late(early.size());
    const auto count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
    std::latch all_hooked(size);
    RunRanks(size, [&](int rank) {
      const auto i = static_cast<size_t>(rank);
      TransferBuffers a({.count = 100}, rank, size), b({.count = 100}, rank, size);
      a.Fill();
      b.Fill();
      Communicator& communicator = world.rank(rank);
      Work* first = nullptr;
      if (rank > 0) first = MustSubmit(communicator, a.MakeTransfer(0));
      if (first) first->OnDone(count, &early[i]);
      all_hooked.arrive_and_wait();  // nobody is done before rank 0 submits
      if (rank == 0) {
        first = MustSubmit(communicator, a.MakeTransfer(0));
        first->OnDone(count, &early[i]);
      }
      Work* const second = MustSubmit(communicator, b.MakeTransfer(1));
      EXPECT_TRUE(first->WaitHost(30000).ok());
      EXPECT_TRUE(second->WaitHost(30000).ok());
      second->OnDone(count, &late[i]);
      EXPECT_EQ(late[i], 1) << "a terminal work calls at once";
      first->Release();
      second->Release();
    });
    for (int rank = 0; rank < size; ++rank) world.Destroy(rank);  // joins whoever calls back
    for (size_t i = 0; i < early.size(); ++i) EXPECT_EQ(early[i], 1) << "rank " << i;
    for (size_t i = 0; i < late.size(); ++i) EXPECT_EQ(late[i], 1) << "rank " << i;
  }
}

TEST_P(CommunicatorConformance, WorkReleasedBeforeItsEndStillCompletes) {
  for (int size = least(); size <= most(3); ++size) {
    std::deque<std::latch> latches;  // outlive the threads that call back
    for (int rank = 0; rank < size; ++rank) latches.emplace_back(8);
    World world(path(), size);
    const bool checked = world.moves_data();
    RunRanks(size, [&](int rank) {
      std::vector<TransferBuffers> buffers;
      std::latch& done = latches[static_cast<size_t>(rank)];
      for (int i = 0; i < 8; ++i) {
        buffers.emplace_back(TransferCase{.count = 2000}, rank, size);
        buffers.back().Fill();
      }
      for (uint64_t i = 0; i < 8; ++i) {
        Work* const work = MustSubmit(world.rank(rank), buffers[i].MakeTransfer(i));
        work->OnDone([](void* latch) { static_cast<std::latch*>(latch)->count_down(); }, &done);
        work->Release();
      }
      done.wait();
      for (const TransferBuffers& buffer : buffers) {
        if (checked) {
          EXPECT_TRUE(buffer.Check());
        }
      }
    });
  }
}

// The peer submits only after the first wait has given up.
TEST_P(CommunicatorPair, WaitThatGivesUpLeavesTheTransferAlone) {
  World world(GetParam(), 2);
  if (!world.moves_data()) GTEST_SKIP() << "nothing is ever pending";
  std::latch gave_up(1);
  RunRanks(2, [&](int rank) {
    TransferBuffers buffers({.count = 10}, rank, 2);
    buffers.Fill();
    if (rank == 1) gave_up.wait();
    Work* const work = MustSubmit(world.rank(rank), buffers.MakeTransfer(0));
    if (rank == 0) {
      EXPECT_EQ(work->state(), WorkState::kPending);
      EXPECT_EQ(work->WaitHost(0).code(), StatusCode::kTimeout);
      EXPECT_EQ(work->WaitHost(20).code(), StatusCode::kTimeout);
      EXPECT_EQ(work->state(), WorkState::kPending);
      gave_up.count_down();
    }
    EXPECT_TRUE(work->WaitHost(30000).ok());
    EXPECT_TRUE(work->WaitStream(nullptr).ok());
    EXPECT_TRUE(buffers.Check());
    work->Release();
  });
}

// 0 says that it is not known.
TEST_P(CommunicatorConformance, ATransferStartsBetweenItsSubmissionAndItsEnd) {
  for (int size = least(); size <= most(3); ++size) {
    World world(path(), size);
    RunRanks(size, [&](int rank) {
      for (const int64_t count : {1, 300007}) {
        TransferBuffers buffers({.count = count}, rank, size);
        const int64_t before = MonotonicNs();
        Work* const work =
            MustSubmit(world.rank(rank), buffers.MakeTransfer(static_cast<uint64_t>(count != 1)));
        const int64_t early = work->started_ns();
        EXPECT_TRUE(work->WaitHost(30000).ok());
        const int64_t started = work->started_ns(), after = MonotonicNs();
        if (early != 0) {
          EXPECT_EQ(early, started) << "a transfer starts once";
        }
        if (started != 0) {
          EXPECT_LE(before, started);
          EXPECT_LE(started, after);
        }
        work->Release();
      }
    });
  }
}

// Rank 1 submits nothing until rank 0 has looked, so only so many transfers can be under way.
TEST_P(CommunicatorPair, AQueuedTransferHasNotStarted) {
  World world(GetParam(), 2);
  const uint32_t in_flight = world.rank(0).traits().max_in_flight;
  if (!world.moves_data() || in_flight == 0) GTEST_SKIP() << "nothing is ever queued";
  std::latch looked(1);
  RunRanks(2, [&](int rank) {
    std::deque<TransferBuffers> buffers;
    std::vector<Work*> works;
    if (rank == 1) looked.wait();
    for (uint64_t i = 0; i <= in_flight; ++i) {
      buffers.emplace_back(TransferCase{.count = 10}, rank, 2);
      works.push_back(MustSubmit(world.rank(rank), buffers[i].MakeTransfer(i)));
    }
    if (rank == 0) {
      EXPECT_EQ(works.front()->WaitHost(20).code(), StatusCode::kTimeout);
      EXPECT_EQ(works.back()->started_ns(), 0);
      looked.count_down();
    }
    for (Work* work : works) {
      EXPECT_TRUE(work->WaitHost(30000).ok());
      work->Release();
    }
  });
}

TEST_P(CommunicatorOneRank, BrokenTransfersAreRefusedWithoutAWork) {
  World world(GetParam(), 1);
  DeviceBytes data(0, 4 * sizeof(float));
  data.Set(std::vector<uint8_t>(data.size()));
  const Transfer valid{.send = data.data(), .recv = data.data(), .count = 4};
  Transfer negative = valid, impatient = valid;
  negative.count = -1;
  impatient.timeout_ms = 0;
  for (const Transfer& broken : {negative, impatient}) {
    Work* work = nullptr;
    EXPECT_EQ(world.rank(0).Submit(broken, &work).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(work, nullptr);
  }
  EXPECT_TRUE(SubmitAndWait(world.rank(0), valid).ok())
      << "a refused transfer must not spoil the others";
}

TEST_P(CommunicatorOneRank, AbortIsRememberedInAWorldOfOne) {
  World world(GetParam(), 1);
  world.rank(0).Abort(Status::Error(StatusCode::kStorage, "the disk is full"));
  Work* work = nullptr;
  const Status status = world.rank(0).Submit({.kind = TransferKind::kBarrier}, &work);
  EXPECT_EQ(status.code(), StatusCode::kStorage);
  EXPECT_STREQ(status.message(), "the disk is full");
  EXPECT_EQ(work, nullptr);
}

TEST_P(CommunicatorPair, SubmitDoesNotAllocateOnceWarm) {
  World world(GetParam(), 2);
  RunRanks(2, [&](int rank) {
    std::vector<TransferBuffers> buffers;
    for (int i = 0; i < 6; ++i) {
      buffers.emplace_back(TransferCase{.count = 9000 * i}, rank, 2);
      buffers.back().Fill();
    }
    uint64_t sequence = 0;
    for (int step = 0; step < 4; ++step) {
      Work* works[6] = {};
      const AllocationCounter counter;
      for (size_t i = 0; i < 6; ++i) {
        const Transfer transfer = buffers[i].MakeTransfer(sequence++, i + 1);
        EXPECT_TRUE(world.rank(rank).Submit(transfer, &works[i]).ok());
      }
      if (step > 0) {
        EXPECT_EQ(counter.count(), 0u) << "step " << step;
      }
      // Who waits may do the work of the implementation's threads meanwhile.
      for (Work* work : works) EXPECT_TRUE(work->WaitHost(30000).ok());
      const AllocationCounter releases;
      for (Work* work : works) work->Release();
      EXPECT_EQ(releases.count(), 0u);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OneRank, CommunicatorConformance,
                         ::testing::ValuesIn(WorldsOf(PluginPaths({COMMUNICATORS}), 1, 1)),
                         NameOfWorlds);
INSTANTIATE_TEST_SUITE_P(Libraries, CommunicatorConformance,
                         ::testing::ValuesIn(WorldsOf(PluginPaths({COMMUNICATORS}), 2, kMaxWorld)),
                         NameOfWorlds);
INSTANTIATE_TEST_SUITE_P(Libraries, CommunicatorOneRank,
                         ::testing::ValuesIn(PluginPaths({COMMUNICATORS})), kNameOfLibrary);
INSTANTIATE_TEST_SUITE_P(Libraries, CommunicatorPair,
                         ::testing::ValuesIn(PluginPaths({COMMUNICATORS})), kNameOfLibrary);

}  // namespace
}  // namespace engine::test
