// What a communicator must do that offers an extension.
#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/ext/accelerator.h"
#include "engine/ext/grouped_transfers.h"
#include "engine/ext/link_cost.h"
#include "engine/ext/recorded_transfers.h"
#include "engine/ext/shared_memory.h"
#include "engine/ext/sub_groups.h"
#include "engine/ext/wire_progress.h"
#include "tools/conform/communicator/communicator_rig.h"
#include "tools/conform/contract.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/ext/shared_memory.h";

template <typename Extension>
Extension& Of(Communicator& communicator) {
  auto* const found = Query<Extension>(communicator);
  if (found == nullptr) throw Status::Error(StatusCode::kUnsupported, "another rank offers it");
  return *found;
}

// All ranks' buffers in shared memory, those of one, and of all but one.
TEST(SharedMemory, BuffersInItAndElsewhereGiveTheSameResults) {
  MUST("Buffers of a transfer may lie anywhere.");
  for (const int size : Sizes(2, 3)) {
    World world(size);
    const CommunicatorTraits integers{.kinds = world.traits().kinds, .dtypes = Bit(DType::kInt32)};
    RunRanks(size, [&](int rank) {
      uint64_t sequence = 0;
      for (const TransferCase& transfer : AllCases(integers, size, {3, 5000, 130003})) {
        for (const int sharing : {size, 1, size - 1}) {
          SCOPED_TRACE(transfer.Words() + ", shared by " + std::to_string(sharing));
          auto& memory = Of<SharedMemory>(world.rank(rank));
          TransferBuffers buffers(transfer, rank, size, rank < sharing ? &memory : nullptr);
          ExpectRight(world, rank, buffers, sequence++);
        }
      }
    });
  }
}

TEST(SharedMemory, IsZeroedAndBounded) {
  MUST(
      "Allocate gives zeroes; kInvalidArgument for 0 bytes, kResourceExhausted when there is no "
      "memory; Free ignores null.");
  RunWorlds(2, 2, [](World& world, int rank) {
    auto& memory = Of<SharedMemory>(world.rank(rank));
    void* data = nullptr;
    EXPECT_EQ(memory.Allocate(0, &data).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(memory.Allocate(uint64_t{1} << 60, &data).code(), StatusCode::kResourceExhausted);
    memory.Free(nullptr);
    const std::vector<uint8_t> bytes = DeviceBytes(rank, 100001, &memory).Get();
    EXPECT_EQ(std::ranges::count(bytes, 0), 100001);
  });
}

TEST(GroupedTransfers, GiveWhatSingleOnesDo) {
  CONTRACT(MUST, "engine/ext/grouped_transfers.h",
           "Transfers are submitted as one: *out is done when all of them are.");
  for (const int size : Sizes(1, 3)) {
    World world(size);
    std::vector<TransferCase> cases = AllCases(world.traits(), size, {0, 1, 257, 70001});
    std::erase_if(cases,
                  [](const TransferCase& one) { return one.kind == TransferKind::kBarrier; });
    RunRanks(size, [&](int rank) {
      constexpr size_t kAtOnce = 7;
      for (size_t begin = 0; begin < cases.size(); begin += kAtOnce) {
        std::deque<TransferBuffers> buffers;
        std::vector<Transfer> transfers;
        for (size_t i = begin; i < std::min(begin + kAtOnce, cases.size()); ++i) {
          buffers.emplace_back(cases[i], rank, size);
          transfers.push_back(buffers.back().MakeTransfer(i));
        }
        Work* work = nullptr;
        ASSERT_OK(Of<GroupedTransfers>(world.rank(rank)).SubmitGroup(transfers, &work));
        ExpectDone(work);
        for (const TransferBuffers& one : buffers) ASSERT_TRUE(one.Check());
      }
    });
  }
}

TEST(GroupedTransfers, RefuseWhatIsNoGroup) {
  CONTRACT(MUST, "engine/ext/grouped_transfers.h",
           "kInvalidArgument for an empty list and for one with a barrier; no Work is made then.");
  RunWorlds(1, 2, [](World& world, int rank) {
    const std::vector<Transfer> barrier(2, {.kind = TransferKind::kBarrier});
    for (const size_t count : {size_t{0}, barrier.size()}) {
      Work* work = nullptr;
      EXPECT_EQ(Of<GroupedTransfers>(world.rank(rank))
                    .SubmitGroup(std::span(barrier).first(count), &work)
                    .code(),
                StatusCode::kInvalidArgument);
      EXPECT_EQ(work, nullptr);
    }
  });
}

// Even ranks, odd ranks the other way round, and the last one without any.
TEST(SubGroups, RanksOfOneColourAreTogetherInTheOrderOfTheirKeys) {
  CONTRACT(MUST, "engine/ext/sub_groups.h",
           "Split gives a communicator of the ranks with the same color, in the order of key, and "
           "none for kNoColor; kInvalidArgument, which is no failure, for another color.");
  RunWorlds(1, 4, [](World& world, int rank) {
    const int size = world.size();
    const auto split = [&](int32_t color, int32_t key, std::unique_ptr<Communicator>* out) {
      Communicator* made = nullptr;
      const Status status = Of<SubGroups>(world.rank(rank)).Split(color, key, &made);
      out->reset(made);
      return status;
    };
    std::unique_ptr<Communicator> part, whole;
    EXPECT_EQ(split(-7, 0, &part).code(), StatusCode::kInvalidArgument);
    const bool alone = size > 2 && rank == size - 1;
    ASSERT_OK(split(alone ? kNoColor : rank % 2, rank % 2 == 0 ? 5 : -rank, &part));
    ASSERT_EQ(part == nullptr, alone);
    ASSERT_OK(split(0, rank, &whole));
    ASSERT_NE(whole, nullptr);
    std::vector<int> expected;
    for (int other = rank % 2; other < (size > 2 ? size - 1 : size); other += 2) {
      expected.insert(rank % 2 == 0 ? expected.end() : expected.begin(), other);
    }
    const auto place = std::ranges::find(expected, rank) - expected.begin();
    if (part != nullptr) {  // at the same time as another group works
      TransferBuffers buffers({.kind = TransferKind::kAllGather, .count = 1000},
                              static_cast<int>(place), static_cast<int>(expected.size()));
      EXPECT_OK(SubmitAndWait(*part, buffers.MakeTransfer(0)));
      EXPECT_TRUE(buffers.Check());
    }
    TransferBuffers sum({.count = 1000}, rank, size);
    EXPECT_OK(SubmitAndWait(*whole, sum.MakeTransfer(0)));
    EXPECT_TRUE(sum.Check());
  });
}

TEST(RecordedTransfers, AreCarriedOutByEveryLaunch) {
  CONTRACT(MUST, "engine/ext/recorded_transfers.h",
           "A transfer that is submitted while Transfer::stream is recorded "
           "(Accelerator::BeginRecording) is part of the recording, and so is what waits for it by "
           "Work::WaitStream. Every launch of the recording carries it out, on all ranks that have "
           "recorded the same transfers in the same order. Its Work is done at once for the host, "
           "which hears of a failure by a later transfer.");
  RunWorlds(1, 2, [](World& world, int rank) {
    const int size = world.size();
    Of<RecordedTransfers>(world.rank(rank));
    Device& device = *DeviceOfRank(rank);
    auto& accelerator = *Query<Accelerator>(device);
    Stream* stream = nullptr;
    Must(device.CreateStream(&stream));
    const std::unique_ptr<Stream> owned(stream);
    TransferBuffers buffers({.count = 5000, .in_place = true}, rank, size);
    ExpectRight(world, rank, buffers, 0);
    DeviceBytes copy(rank, 5000 * sizeof(float));
    Transfer transfer = buffers.MakeTransfer(1);
    transfer.stream = stream;
    Must(accelerator.BeginRecording(stream));
    Work* const work = MustSubmit(world.rank(rank), transfer);
    EXPECT_OK(work->WaitStream(stream));
    ExpectDone(work);
    Must(device.Copy(copy.data(), transfer.recv, copy.size(), stream));
    Recording* recording = nullptr;
    Must(accelerator.EndRecording(stream, &recording));
    const std::unique_ptr<Recording> launches(recording);
    for (int launch = 0; launch < 3; ++launch) {
      buffers.Fill();
      Must(recording->Launch(stream));
      Must(stream->Synchronize(kWaitMs));
      EXPECT_TRUE(buffers.Check());
      const std::vector<uint8_t> sums = buffers.Received(), copied = copy.Get();
      EXPECT_TRUE(std::ranges::equal(copied, std::span(sums).first(copied.size())));
      copy.Set(std::vector<uint8_t>(copy.size()));
    }
  });
}

TEST(WireProgress, GrowsWithWhatMoves) {
  CONTRACT(MUST, "engine/ext/wire_progress.h",
           "bytes_moved() grows with what this rank moves, and never shrinks.");
  RunWorlds(2, 2, [](World& world, int rank) {
    auto& progress = Of<WireProgress>(world.rank(rank));
    for (uint64_t i = 0; i < 3; ++i) {
      const uint64_t before = progress.bytes_moved();
      TransferBuffers buffers({.count = 300007}, rank, world.size());
      ExpectRight(world, rank, buffers, i);
      EXPECT_GT(progress.bytes_moved(), before);
    }
  });
}

TEST(LinkCost, IsThatOfAMessage) {
  CONTRACT(MUST, "engine/ext/link_cost.h",
           "A rank sends messages of at most message_bytes, with header_bytes in front of each.");
  RunWorlds(1, 2, [](World& world, int rank) {
    const LinkCost cost = Of<LinkModel>(world.rank(rank)).cost();
    EXPECT_TRUE(cost.message_bytes == 0 || cost.header_bytes < cost.message_bytes)
        << cost.header_bytes << " of " << cost.message_bytes;
  });
}

}  // namespace
}  // namespace engine::conform
