// Communicators of some of the ranks, split from that of all.

#include "engine/ext/grouped_transfers.h"
#include "engine/ext/sub_groups.h"
#include "tests/emulated_cuda/nccl/nccl_rig.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

using Child = std::unique_ptr<Communicator>;

constexpr int64_t kDeadlineMs = 1000;

SubGroups* GroupsOf(Communicator& communicator) {
  return Query<SubGroups>(communicator);
}

Child MustSplit(Communicator& communicator, int32_t color, int32_t key) {
  Communicator* made = nullptr;
  const Status status = GroupsOf(communicator)->Split(color, key, &made);
  EXPECT_TRUE(status.ok()) << status.message();
  return Child(made);
}

Status ErrorOfSplit(Communicator& communicator) {
  Communicator* made = nullptr;
  const Status status = GroupsOf(communicator)->Split(0, 0, &made);
  EXPECT_EQ(made, nullptr);
  return status;
}

// What all ranks of `communicator` bring, in their order.
std::vector<int32_t> Gathered(Communicator& communicator, size_t size, int32_t own) {
  std::vector<int32_t> all(size, -1);
  const Status status = SubmitAndWait(communicator, {.kind = TransferKind::kAllGather,
                                                     .dtype = DType::kInt32,
                                                     .send = &own,
                                                     .recv = all.data(),
                                                     .count = 1});
  EXPECT_TRUE(status.ok()) << status.message();
  return all;
}

void ExpectSum(Communicator& communicator, float own, float sum) {
  std::vector<float> data(1000, own);
  const Status status = SubmitAndWait(communicator, InPlace(data, 0));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(data, std::vector<float>(1000, sum));
}

TEST(NcclSplit, RanksOfOneColourAreTogetherInTheOrderOfTheirKeys) {
  OnRanks(4, kDeadlineMs, [&](World& world, int rank) {
    // Colours 0 and 5; in the second the keys turn the order round.
    const bool even = rank % 2 == 0;
    const Child child = MustSplit(world.rank(rank), even ? 0 : 5, even ? 7 : -rank);
    ASSERT_NE(child, nullptr);
    EXPECT_EQ(Gathered(*child, 2, rank),
              even ? (std::vector<int32_t>{0, 2}) : (std::vector<int32_t>{3, 1}));
    // Roots count in the group.
    std::vector<float> data(10, static_cast<float>(rank));
    Transfer broadcast = InPlace(data, 1);
    broadcast.kind = TransferKind::kBroadcast;
    broadcast.root = 1;
    EXPECT_TRUE(SubmitAndWait(*child, broadcast).ok());
    EXPECT_EQ(data, std::vector<float>(10, even ? 2.0f : 1.0f));
    broadcast.root = 2;
    EXPECT_EQ(SubmitAndWait(*child, broadcast).code(), StatusCode::kInvalidArgument);
  });
}

TEST(NcclSplit, ARankWithoutColourTakesPartAndGetsNone) {
  OnRanks(3, [&](World& world, int rank) {
    const Child child = MustSplit(world.rank(rank), rank == 1 ? kNoColor : 2, 0);
    EXPECT_EQ(child == nullptr, rank == 1);
    if (child != nullptr) {
      EXPECT_EQ(Gathered(*child, 2, rank), (std::vector<int32_t>{0, 2}));
    }
    ExpectSum(world.rank(rank), static_cast<float>(rank), 3);
  });
}

TEST(NcclSplit, AChildIsSplitAgainAndOftenEnough) {
  OnRanks(4, [&](World& world, int rank) {
    for (int round = 0; round < 5; ++round) {
      const Child half = MustSplit(world.rank(rank), rank / 2, rank);
      ASSERT_NE(half, nullptr);
      const Child turned = MustSplit(*half, 0, -rank);
      ASSERT_NE(turned, nullptr);
      const int32_t first = rank / 2 * 2;
      EXPECT_EQ(Gathered(*turned, 2, rank), (std::vector<int32_t>{first + 1, first}));
    }
  });
}

TEST(NcclSplit, AWorldOfOneIsSplitToo) {
  World world(kNcclPlugin, 1);
  EXPECT_EQ(MustSplit(world.rank(0), kNoColor, 0), nullptr);
  const Child child = MustSplit(world.rank(0), 1, 1);
  ASSERT_NE(child, nullptr);
  ExpectSum(*child, 4, 4);
}

// The transfers before it are still on their way to NCCL; those behind it must not overtake them.
TEST(NcclSplit, HasAPlaceInTheOrderOfSubmission) {
  constexpr size_t kHalf = 10;
  OnRanks(3, [&](World& world, int rank) {
    std::vector<std::vector<float>> data;
    for (size_t i = 0; i < 2 * kHalf; ++i) data.emplace_back(10 + i, static_cast<float>(i + 1));
    std::vector<Work*> works;
    Child child;
    for (size_t i = 0; i < data.size(); ++i) {
      if (i == kHalf) child = MustSplit(world.rank(rank), 0, rank);
      works.push_back(MustSubmit(world.rank(rank), InPlace(data[i], i)));
    }
    for (size_t i = 0; i < data.size(); ++i) {
      EXPECT_TRUE(works[i]->WaitHost(30000).ok());
      works[i]->Release();
      EXPECT_EQ(data[i], std::vector<float>(10 + i, static_cast<float>(3 * (i + 1))));
    }
    ASSERT_NE(child, nullptr);
    ExpectSum(*child, 1, 3);
  });
}

// A transfer of one that cannot begin keeps nothing of the other.
TEST(NcclSplit, ParentAndChildWorkAtTheSameTime) {
  OnRanks(2, [&](World& world, int rank) {
    const Child child = MustSplit(world.rank(rank), 0, rank);
    ASSERT_NE(child, nullptr);
    for (Communicator* held : {&world.rank(rank), child.get()}) {
      Communicator& other = held == child.get() ? world.rank(rank) : *child;
      TestStream producer(rank);
      std::atomic<bool> gate{false};
      producer.Hold(&gate);
      std::vector<float> data(100, 1);
      Transfer transfer = InPlace(data, 0);
      transfer.stream = &producer;
      Work* const work = MustSubmit(*held, transfer);
      ASSERT_NE(work, nullptr);
      for (int i = 0; i < 5; ++i) ExpectSum(other, 2, 4);
      EXPECT_EQ(work->state(), WorkState::kPending);
      gate = true;
      EXPECT_TRUE(work->WaitHost(30000).ok());
      work->Release();
      EXPECT_EQ(data, std::vector<float>(100, 2));
    }
  });
}

TEST(NcclSplit, AnAbortOfParentOrChildDoesNothingToTheOther) {
  for (const bool of_parent : {true, false}) {
    OnRanks(2, [&](World& world, int rank) {
      Child child = MustSplit(world.rank(rank), 0, rank);
      ASSERT_NE(child, nullptr);
      Communicator& aborted = of_parent ? world.rank(rank) : *child;
      Communicator& other = of_parent ? *child : world.rank(rank);
      aborted.Abort(Status::Error(StatusCode::kStorage, "the disk is full"));
      EXPECT_STREQ(ErrorOfSplit(aborted).message(), "the disk is full");
      ExpectSum(other, 1, 2);
      if (of_parent) {
        world.Destroy(rank);
      } else {
        child.reset();
      }
      ExpectSum(other, 2, 4);
    });
  }
}

// Of the group they would be 0 and 1.
TEST(NcclSplit, ErrorsOfAChildNameRanksOfTheRun) {
  World world(kNcclPlugin, 3);
  std::vector<Child> children(3);
  RunRanks(3, [&](int rank) {
    children[static_cast<size_t>(rank)] = MustSplit(world.rank(rank), rank == 0 ? 0 : 1, 0);
  });
  ASSERT_TRUE(children[1] != nullptr && children[2] != nullptr);
  std::vector<float> data(10);
  const Status late = SubmitAndWait(*children[1], InPlace(data, 0, 200));
  EXPECT_EQ(late.code(), StatusCode::kTimeout);
  EXPECT_EQ(late.rank(), 2);
  EXPECT_THAT(late.message(), HasSubstr("still waiting for rank 2"));
  // It finds out by itself.
  Status heard;
  EXPECT_TRUE(Eventually([&] {
    heard = SubmitAndWait(*children[2], InPlace(data, 0));
    return !heard.ok();
  }));
  EXPECT_EQ(heard.rank(), 2) << heard.message();
  EXPECT_THAT(heard.message(), HasSubstr("rank 1 gave up"));
}

// Also that to which all have said that they have come.
TEST(NcclSplit, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  for (const int missing : {0, 1}) {
    const Promptly promptly;
    OnRanks(3, kDeadlineMs, [&](World& world, int rank) {
      if (rank == missing) return;
      const Status status = ErrorOfSplit(world.rank(rank));
      EXPECT_EQ(status.code(), StatusCode::kRendezvous) << status.message();
      EXPECT_EQ(status.rank(), missing);
      EXPECT_THAT(status.message(), HasSubstr(missing == 0 ? "rank 0 of 3 did not appear"
                                                           : "rank 1 of 3 did not appear"));
      std::vector<float> data(10);
      EXPECT_EQ(SubmitAndWait(world.rank(rank), InPlace(data, 0)).code(), StatusCode::kRendezvous)
          << "the order of ranks is broken";
    });
  }
}

TEST(NcclSplit, ARankThatAbortsMeanwhileEndsItForAll) {
  const Promptly promptly;
  OnRanks(2, [&](World& world, int rank) {
    if (rank == 1) {
      return world.rank(1).Abort(Status::Error(StatusCode::kStorage, "the disk is full"));
    }
    const Status status = ErrorOfSplit(world.rank(0));
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), 1);
  });
}

TEST(NcclSplit, AColourThatIsNoneIsRefusedAndNothingHasHappened) {
  World world(kNcclPlugin, 1);
  Communicator* made = nullptr;
  const Status status = GroupsOf(world.rank(0))->Split(-2, 0, &made);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(made, nullptr);
  EXPECT_NE(MustSplit(world.rank(0), 0, 0), nullptr);
}

TEST(NcclSplit, IsNotOfferedWhereNcclDoesNotHaveIt) {
  OnRanks(2, {{"library", "libbare_nccl.so.2"}}, [&](World& world, int rank) {
    EXPECT_EQ(Query<SubGroups>(world.rank(rank)), nullptr);
    EXPECT_EQ(Query<GroupedTransfers>(world.rank(rank)), nullptr);
    ExpectSum(world.rank(rank), 1, 2);
  });
}

}  // namespace
}  // namespace engine::test
