// What goes wrong in NCCL, and what users are told.

#include "tests/emulated_cuda/nccl/nccl_rig.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

const Status kReason = Status::Error(StatusCode::kStorage, "the disk is full");

TEST(NcclCreation, WithoutAUsableLibraryOrConfigurationIsOneSentence) {
  const struct {
    OptionValues::Overrides options;
    const char* faults;
    StatusCode code;
    std::vector<const char*> words;
  } cases[] = {
      {{{"library", "libno_such_nccl.so.2"}},
       "",
       StatusCode::kPlugin,
       {"'libno_such_nccl.so.2'", "2.19.0", "option library"}},
      {{{"library", "libm.so.6"}}, "", StatusCode::kPlugin, {"'libm.so.6' is not NCCL", "2.19.0"}},
      {{}, "version=21803", StatusCode::kPlugin, {"2.19.0", "2.18.3", "libnccl.so.2", "install"}},
      {{{"min_ctas", "8"}, {"max_ctas", "4"}}, "", StatusCode::kConfig, {"min_ctas 8"}},
  };
  for (const auto& one : cases) {
    const Fault fault(one.faults);
    SingleHost host;
    const Status status = ErrorOfCreation(host, one.options);
    EXPECT_EQ(status.code(), one.code) << status.message();
    for (const char* words : one.words) EXPECT_THAT(status.message(), HasSubstr(words));
  }
}

TEST(NcclCreation, ThatNeverEndsIsGivenUpAtTheDeadline) {
  const Fault fault("init");
  const auto plugin = Must(PluginUnderTest::Load(kNcclPlugin));
  const auto hosts = MakeMemoryHosts(2, {}, 200);
  const auto start = Clock::now();
  RunRanks(2, [&](int rank) {
    const auto created = plugin.Create<Communicator>(*hosts[static_cast<size_t>(rank)]);
    ASSERT_FALSE(created.ok());
    EXPECT_EQ(created.status().code(), StatusCode::kRendezvous);
    EXPECT_THAT(created.status().message(),
                AllOf(HasSubstr("all 2 ranks have come"), HasSubstr("200 ms")));
  });
  EXPECT_LT(Clock::now() - start, kPromptly);
}

TEST(NcclCreation, WithDifferentLibrariesNamesBoth) {
  const auto plugin = Must(PluginUnderTest::Load(kNcclPlugin));
  const auto hosts = MakeMemoryHosts(2);
  // Rank 1 was here with another version; NCCL would not come to an end.
  const std::string version = "22703";
  ASSERT_TRUE(
      hosts[1]->StoreSet("0/here/1", {reinterpret_cast<const uint8_t*>(version.data()), 5}).ok());
  const auto created = plugin.Create<Communicator>(*hosts[0]);
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.status().code(), StatusCode::kPlugin);
  EXPECT_EQ(created.status().rank(), 1);
  EXPECT_THAT(created.status().message(), AllOf(HasSubstr("2.27.3"), HasSubstr("2.28.9")));
}

// A user may be steps ahead of the GPU.
TEST(NcclFailure, ADeadlineBeginsWhenTheGpuComesToTheTransfer) {
  OnRanks(2, [](World& world, int rank) {
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

// Errors that come up by themselves. A lost connection between living ranks blames nobody: ranks whose
// process is alive are told apart from one that ended.
TEST(NcclFailure, AnErrorOfNcclEndsEverythingOnAllRanks) {
  const struct {
    const char* fault;
    StatusCode code;
    int blamed;
    const char* words;
  } cases[] = {{"error=0@3", StatusCode::kDevice, 0, "unhandled system error"},
               {"remote=0@1", StatusCode::kPeerLost, -1, "network error"}};
  for (const auto& one : cases) {
    const Fault fault(one.fault);
    const Promptly promptly;
    OnRanks(2, [&](World& world, int rank) {
      std::vector<float> data(1000);
      Status status;
      for (uint64_t i = 0; i < 100000 && status.ok(); ++i) {
        status = SubmitAndWait(world.rank(rank), InPlace(data, i));
      }
      EXPECT_EQ(status.code(), one.code) << status.message();
      EXPECT_THAT(status.message(), HasSubstr(one.words));
      if (rank == 1 && one.blamed == 0) {
        EXPECT_THAT(status.message(), HasSubstr("rank 0 gave up"));
      }
      if (one.blamed < 0) {
        EXPECT_EQ(status.rank(), -1) << status.message();
      }
      Work* work = nullptr;
      const Status later = world.rank(rank).Submit(InPlace(data, 0), &work);
      EXPECT_STREQ(later.message(), status.message()) << "the first reason stays";
      EXPECT_EQ(work, nullptr);
    });
  }
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
        AllOf(HasSubstr("all-reduce of 4 kB (bucket 3, sequence 2) was not done within 300 ms"),
              HasSubstr("all ranks have submitted it")));
  });
}

// A transfer behind the first may have the shorter deadline.
TEST(NcclFailure, TheEarliestDeadlineCounts) {
  World world(kNcclPlugin, 2);
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

// NCCL may be busy for ever, or a stream of the user's may never come to make the data.
TEST(NcclFailure, AbortEndsATransferThatNcclOrTheUserKeeps) {
  for (const bool busy : {true, false}) {
    const Fault fault(busy ? "busy" : "");
    World world(kNcclPlugin, 2);
    TestStream producer(0);
    std::atomic<bool> gate{busy};
    producer.Hold(&gate);
    std::vector<float> data(10);
    Transfer transfer = InPlace(data, 0);
    if (!busy) transfer.stream = &producer;
    Work* const work = MustSubmit(world.rank(0), transfer);
    ASSERT_NE(work, nullptr);
    {
      const Promptly promptly;
      world.rank(0).Abort(kReason);
      EXPECT_STREQ(work->WaitHost(20000).message(), kReason.message());
    }
    work->Release();
    gate = true;
    EXPECT_TRUE(producer.Synchronize(0).ok());
    world.Destroy(0);
  }
}

}  // namespace
}  // namespace engine::test
