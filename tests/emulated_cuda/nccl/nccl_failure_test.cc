// What goes wrong in NCCL, and what users are told.
#include <gmock/gmock.h>

#include <latch>

#include "tests/emulated_cuda/nccl/nccl_rig.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Status kReason = Status::Error(StatusCode::kStorage, "the disk is full");

TEST(NcclCreation, WithoutTheLibraryIsOneSentence) {
  SingleHost host;
  const Status status = ErrorOfCreation(host, {{"library", "libno_such_nccl.so.2"}});
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'libno_such_nccl.so.2'"), HasSubstr("2.19.0"),
                                      HasSubstr("option library")));
}

TEST(NcclCreation, WithALibraryThatIsNotNcclIsOneSentence) {
  SingleHost host;
  const Status status = ErrorOfCreation(host, {{"library", "libm.so.6"}});
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'libm.so.6' is not NCCL"), HasSubstr("2.19.0")));
}

TEST(NcclCreation, WithAnOldLibrarySaysWhichIsWantedAndWhichWasFound) {
  const Fault fault("version=21803");
  SingleHost host;
  const Status status = ErrorOfCreation(host, {});
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("2.19.0"), HasSubstr("2.18.3"),
                                      HasSubstr("libnccl.so.2"), HasSubstr("install")));
}

TEST(NcclCreation, MinimumAboveMaximumIsAConfigurationError) {
  SingleHost host;
  EXPECT_EQ(ErrorOfCreation(host, {{"min_ctas", "8"}, {"max_ctas", "4"}}).code(),
            StatusCode::kConfig);
}

TEST(NcclCreation, ThatNeverEndsIsGivenUpAtTheDeadline) {
  const Fault fault("init");
  const auto plugin = PluginUnderTest::Load(kNcclPlugin);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  const auto hosts = MakeMemoryHosts(2);
  const auto start = Clock::now();
  RunRanks(2, [&](int rank) {
    const auto created = plugin->Create<Communicator>(*hosts[static_cast<size_t>(rank)],
                                                      {{"rendezvous_timeout_ms", "200"}});
    ASSERT_FALSE(created.ok());
    EXPECT_EQ(created.status().code(), StatusCode::kRendezvous);
    EXPECT_THAT(created.status().message(),
                AllOf(HasSubstr("all 2 ranks have come"), HasSubstr("200 ms")));
  });
  EXPECT_LT(Clock::now() - start, kPromptly);
}

TEST(NcclCreation, WithDifferentLibrariesNamesBoth) {
  const auto plugin = PluginUnderTest::Load(kNcclPlugin);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  const auto hosts = MakeMemoryHosts(2);
  // Rank 1 was here with another version; NCCL would not come to an end.
  const std::string version = "22703";
  ASSERT_TRUE(
      hosts[1]->StoreSet("0/here/1", {reinterpret_cast<const uint8_t*>(version.data()), 5}).ok());
  const auto created = plugin->Create<Communicator>(*hosts[0]);
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.status().code(), StatusCode::kPlugin);
  EXPECT_EQ(created.status().rank(), 1);
  EXPECT_THAT(created.status().message(), AllOf(HasSubstr("2.27.3"), HasSubstr("2.28.9")));
}

// A user may be steps ahead of the GPU.
TEST(NcclFailure, ADeadlineBeginsWhenTheGpuComesToTheTransfer) {
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  RunRanks(2, [&](int rank) {
    TestStream stream(rank);
    std::atomic<bool> gate{false};
    stream.Hold(&gate);
    std::vector<float> data(10);
    Transfer transfer = InPlace(data, 0, 300);
    transfer.stream = &stream;
    Work* work = MustSubmit(world.rank(rank), transfer);
    std::this_thread::sleep_for(std::chrono::milliseconds(900));
    EXPECT_EQ(work->state(), WorkState::kPending);
    gate = true;
    EXPECT_TRUE(work->WaitHost(10000).ok());
    work->Release();
    if (rank == 1) return;  // submits no other one
    transfer.sequence = 1;
    work = MustSubmit(world.rank(rank), transfer);
    const Status status = work->WaitHost(10000);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("300 ms"), HasSubstr("waiting for rank 1")));
    work->Release();
  });
}

TEST(NcclFailure, AnErrorOfNcclEndsEverythingOnAllRanks) {
  const Fault fault("error=0@3");
  const Promptly promptly;
  OnRanks(2, [&](World& world, int rank) {
    std::vector<float> data(1000);
    Status status;
    for (uint64_t i = 0; i < 100000 && status.ok(); ++i) {
      status = SubmitAndWait(world.rank(rank), InPlace(data, i));
    }
    EXPECT_EQ(status.code(), StatusCode::kDevice) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("unhandled system error"));
    if (rank == 1) {
      EXPECT_THAT(status.message(), HasSubstr("rank 0 gave up"));
    }
    Work* work = nullptr;
    const Status later = world.rank(rank).Submit(InPlace(data, 0), &work);
    EXPECT_STREQ(later.message(), status.message()) << "the first reason stays";
    EXPECT_EQ(work, nullptr);
  });
}

// All ranks have submitted, so nobody is to blame.
TEST(NcclFailure, ACollectiveThatHangsOnTheGpuIsATimeout) {
  const Fault fault("absent=1@2");
  const Promptly promptly;
  OnRanks(2, [&](World& world, int rank) {
    std::vector<float> data(1000);
    for (uint64_t i = 0; i < 2; ++i) {
      const Status status = SubmitAndWait(world.rank(rank), InPlace(data, i));
      EXPECT_TRUE(status.ok()) << status.message();
    }
    const Status status = SubmitAndWait(world.rank(rank), InPlace(data, 2, 300));
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
    EXPECT_EQ(status.rank(), -1);
    EXPECT_THAT(
        status.message(),
        AllOf(HasSubstr("all-reduce of 4 kB (unit 3, sequence 2) was not done within 300 ms"),
              HasSubstr("all ranks have submitted it")));
  });
}

// A transfer behind the first may have the shorter deadline.
TEST(NcclFailure, TheEarliestDeadlineCounts) {
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  std::vector<float> data(10);
  Work* const patient = MustSubmit(world.rank(0), InPlace(data, 0, 60000));
  Work* const impatient = MustSubmit(world.rank(0), InPlace(data, 1, 200));
  ASSERT_TRUE(patient && impatient);
  for (Work* work : {patient, impatient}) {
    const Status status = work->WaitHost(20000);
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("sequence 1"), HasSubstr("rank 1")));
    work->Release();
  }
}

// NCCL connects ranks in a thread of its own; it may never come back from there.
TEST(NcclFailure, ALaunchThatNeverEndsIsATimeoutAlsoForStreams) {
  const Fault fault("busy");
  OnRanks(2, [&](World& world, int rank) {
    TestStream consumer(rank);
    std::vector<float> data(10);
    Work* const first = MustSubmit(world.rank(rank), InPlace(data, 0, 300));
    Work* const second = MustSubmit(world.rank(rank), InPlace(data, 1, 300));
    ASSERT_TRUE(first && second);
    EXPECT_EQ(second->WaitStream(&consumer).code(), StatusCode::kTimeout);
    EXPECT_EQ(first->WaitHost(20000).code(), StatusCode::kTimeout);
    first->Release();
    second->Release();
  });
}

TEST(NcclFailure, AbortWhileNcclIsBusyIsPrompt) {
  const Fault fault("busy");
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  std::vector<float> data(10);
  Work* const work = MustSubmit(world.rank(0), InPlace(data, 0));
  ASSERT_NE(work, nullptr);
  const auto start = Clock::now();
  world.rank(0).Abort(kReason);
  EXPECT_STREQ(work->WaitHost(20000).message(), kReason.message());
  EXPECT_LT(Clock::now() - start, kPromptly);
  work->Release();
}

// A stream of the user's that never comes keeps a transfer for ever: an abort must end it still.
TEST(NcclFailure, AbortEndsATransferWhoseDataNeverCome) {
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  TestStream producer(0);
  std::atomic<bool> gate{false};
  producer.Hold(&gate);
  std::vector<float> data(10);
  Transfer transfer = InPlace(data, 0);
  transfer.stream = &producer;
  Work* const work = MustSubmit(world.rank(0), transfer);
  ASSERT_NE(work, nullptr);
  const auto start = Clock::now();
  world.rank(0).Abort(kReason);
  EXPECT_STREQ(work->WaitHost(20000).message(), kReason.message());
  EXPECT_LT(Clock::now() - start, kPromptly);
  work->Release();
  gate = true;
  EXPECT_TRUE(producer.Synchronize(0).ok());
  world.Destroy(0);
}

// Ranks whose process is alive are told apart from one that ended: here all live, and NCCL errs.
TEST(NcclFailure, ALostConnectionBetweenLivingRanksBlamesNobody) {
  const Fault fault("remote=0@1");
  OnRanks(2, [&](World& world, int rank) {
    std::vector<float> data(1000);
    Status status;
    for (uint64_t i = 0; i < 100000 && status.ok(); ++i) {
      status = SubmitAndWait(world.rank(rank), InPlace(data, i));
    }
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), -1) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("network error"));
  });
}

}  // namespace
}  // namespace engine::test
