// What goes wrong in NCCL, and what users are told.
#include <gmock/gmock.h>

#include <latch>

#include "engine/sub_groups.h"
#include "tests/emulated_cuda/nccl/nccl_rig.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Status kReason = Status::Error(StatusCode::kStorage, "the disk is full");

// A device whose ops run on the CPU.
class CpuDevice final : public Device {
 public:
  const char* type() const noexcept override { return "cpu"; }
  Status Allocate(size_t, void**) noexcept override { return None(); }
  void Free(void*) noexcept override {}
  Status Copy(void*, const void*, size_t, Stream*) noexcept override { return None(); }
  Status Zero(void*, size_t, Stream*) noexcept override { return None(); }
  Status CreateStream(Stream**) noexcept override { return None(); }
  Status CreateEvent(Event**) noexcept override { return None(); }

 private:
  static Status None() { return Status::Error(StatusCode::kUnsupported, "not here"); }
};

TEST(NcclCreation, WithoutTheLibraryIsOneSentence) {
  LoneHost host;
  const Status status = ErrorOfCreation(host, {{"library", "libno_such_nccl.so.2"}});
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'libno_such_nccl.so.2'"), HasSubstr("2.19.0"),
                                      HasSubstr("option library")));
}

TEST(NcclCreation, WithALibraryThatIsNotNcclIsOneSentence) {
  LoneHost host;
  const Status status = ErrorOfCreation(host, {{"library", "libm.so.6"}});
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'libm.so.6' is not NCCL"), HasSubstr("2.19.0")));
}

TEST(NcclCreation, WithAnOldLibrarySaysWhichIsWantedAndWhichWasFound) {
  const Fault fault("version=21803");
  LoneHost host;
  const Status status = ErrorOfCreation(host, {});
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("2.19.0"), HasSubstr("2.18.3"),
                                      HasSubstr("libnccl.so.2"), HasSubstr("install")));
}

TEST(NcclCreation, ForOpsOnTheCpuIsRefused) {
  CpuDevice device;
  MemoryHost host({}, std::make_shared<MemoryStoreTable>(), &device);
  const Status status = ErrorOfCreation(host, {});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'cpu'"), HasSubstr("cuda_ops")));
}

TEST(NcclCreation, MinimumAboveMaximumIsAConfigurationError) {
  LoneHost host;
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

TEST(NcclCreation, NamesRanksThatDoNotComeToAllOthers) {
  const auto plugin = PluginUnderTest::Load(kNcclPlugin);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  for (const auto& [missing, words] :
       {std::pair(0, "rank 0 of 4 did not"), std::pair(1, "ranks 1, 3 of 4 did not")}) {
    const auto hosts = MakeMemoryHosts(4);
    RunRanks(4, [&, first = missing, text = words](int rank) {
      if (rank == first || (first > 0 && rank == 3)) return;
      const auto created = plugin->Create<Communicator>(*hosts[static_cast<size_t>(rank)],
                                                        {{"rendezvous_timeout_ms", "300"}});
      ASSERT_FALSE(created.ok());
      EXPECT_EQ(created.status().code(), StatusCode::kRendezvous);
      EXPECT_EQ(created.status().rank(), first);
      EXPECT_THAT(created.status().message(), HasSubstr(text));
    });
  }
}

// Every rank says something once, and hears all from one of them: at the start, in a split and in a
// roll call.
TEST(NcclCreation, AndWhatFollowsAskTheStoreLessOftenThanThereArePairsOfRanks) {
  constexpr int kRanks = 16;
  const auto plugin = PluginUnderTest::Load(kNcclPlugin);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  const auto hosts = MakeMemoryHosts(kRanks);
  const auto asked = [&] {
    int sum = 0;
    for (const auto& host : hosts) sum += host->TakeAsked();
    return sum;
  };
  std::vector<std::unique_ptr<Communicator>> communicators(kRanks);
  const auto on_all = [&](const std::function<void(size_t)>& body) {
    RunRanks(kRanks, [&](int rank) { body(static_cast<size_t>(rank)); });
  };
  on_all([&](size_t rank) {
    auto created = plugin->Create<Communicator>(*hosts[rank]);
    ASSERT_TRUE(created.ok()) << created.status().message();
    communicators[rank] = std::move(*created);
  });
  EXPECT_LT(asked(), kRanks * kRanks / 2);
  on_all([&](size_t rank) {
    Communicator* child = nullptr;
    auto* const groups = static_cast<SubGroups*>(communicators[rank]->Query(kSubGroupsId));
    EXPECT_TRUE(groups->Split(0, 0, &child).ok());
    delete child;
  });
  EXPECT_LT(asked(), kRanks * kRanks / 2);
  on_all([&](size_t rank) {
    std::vector<float> data(10);
    if (rank == 7) return;
    const Status status = SubmitAndWait(*communicators[rank], InPlace(data, 0, 300));
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
    EXPECT_EQ(status.rank(), 7) << status.message();
  });
  EXPECT_LT(asked(), kRanks * kRanks);
}

TEST(NcclCreation, ConnectsByAsManyIdsAsTheWorldNeeds) {
  const auto plugin = PluginUnderTest::Load(kNcclPlugin);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  for (const auto& [library, words] :
       {std::pair("libnccl.so.2", "5 ranks connect by ids of NCCL: 3"),
        std::pair("libbare_nccl.so.2", "of NCCL: 1")}) {
    const auto hosts = MakeMemoryHosts(5);
    RunRanks(5, [&, name = library, text = words](int rank) {
      MemoryHost& host = *hosts[static_cast<size_t>(rank)];
      const auto created =
          plugin->Create<Communicator>(host, {{"library", name}, {"ranks_per_id", "2"}});
      ASSERT_TRUE(created.ok()) << created.status().message();
      std::vector<float> data(10, 1);
      EXPECT_TRUE(SubmitAndWait(**created, InPlace(data, 0)).ok());
      EXPECT_EQ(data, std::vector<float>(10, 5));
      EXPECT_THAT(host.log(), ::testing::Contains(HasSubstr(text)));
    });
  }
}

TEST(NcclCreation, TellsNcclTheCtaPolicyOrSaysThatItIsTooOld) {
  const std::pair<const char*, const char*> policies[] = {{"policy=1", "efficiency"},
                                                          {"policy=2", "zero"}};
  LoneHost host;
  for (const auto& [wanted, policy] : policies) {
    const Fault fault(wanted);
    EXPECT_TRUE(ErrorOfCreation(host, {{"cta_policy", policy}}).ok()) << policy;
  }
  const std::pair<const char*, const char*> too_old[] = {{"version=22605", "efficiency"},
                                                         {"version=22707", "zero"}};
  for (const auto& [version, policy] : too_old) {
    const Fault fault(version);
    const Status status = ErrorOfCreation(host, {{"cta_policy", policy}});
    EXPECT_EQ(status.code(), StatusCode::kPlugin);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("cta_policy"), HasSubstr("or later")));
  }
}

TEST(NcclFailure, AnErrorOfNcclEndsEverythingOnAllRanks) {
  const Fault fault("error=0@3");
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  const auto start = Clock::now();
  RunRanks(2, [&](int rank) {
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
  EXPECT_LT(Clock::now() - start, kPromptly);
}

// All ranks have submitted, so nobody is to blame.
TEST(NcclFailure, ACollectiveThatHangsOnTheGpuIsATimeout) {
  const Fault fault("absent=1@2");
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  const auto start = Clock::now();
  RunRanks(2, [&](int rank) {
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
  EXPECT_LT(Clock::now() - start, kPromptly);
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
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  RunRanks(2, [&](int rank) {
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
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  RunRanks(2, [&](int rank) {
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
