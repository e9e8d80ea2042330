// Servers inside of ranks and of their own, through the communicators that the plugin makes.
#include <gmock/gmock.h>

#include <thread>

#include "cluster.h"
#include "communicator.h"
#include "server_member.h"
#include "tests/support/memory_host.h"

namespace engine::zmq_ps {
namespace {

constexpr uint64_t kKey = 21;
constexpr int64_t kCount = 300000;

class Members : public ::testing::Test {
 protected:
  void Start(int ranks, int servers, const CommunicatorSettings& settings = {}) {
    for (int i = 0; i < ranks + servers; ++i) {
      const bool is_server = i >= ranks;
      hosts_.push_back(
          std::make_unique<test::MemoryHost>(RankInfo{.rank = is_server ? i - ranks : i,
                                                      .world_size = ranks,
                                                      .local_rank = is_server ? 0 : i,
                                                      .local_world_size = ranks,
                                                      .servers = servers,
                                                      .is_server = is_server},
                                             store_));
    }
    ranks_.resize(static_cast<size_t>(ranks));
    members_.resize(static_cast<size_t>(servers));
    ends_.resize(members_.size());
    RunWorkers(static_cast<uint32_t>(ranks + servers), [&](uint32_t i) {
      if (i < ranks_.size()) {
        auto created = ZmqPsCommunicator::Create(*hosts_[i], settings);
        EXPECT_TRUE(created.ok()) << created.status().message();
        if (created.ok()) ranks_[i] = std::move(*created);
        return;
      }
      auto created = ServerMember::Create(*hosts_[i], settings);
      EXPECT_TRUE(created.ok()) << created.status().message();
      if (created.ok()) members_[i - ranks_.size()] = std::move(*created);
    });
    for (size_t i = 0; i < members_.size(); ++i) {
      ASSERT_NE(members_[i], nullptr);
      serving_.emplace_back([this, i] { ends_[i] = ServerOf(i).Serve(optimizer_); });
    }
    for (const auto& rank : ranks_) ASSERT_NE(rank, nullptr);
  }
  void End() {
    RunWorkers(static_cast<uint32_t>(ranks_.size()), [&](uint32_t rank) { ranks_[rank].reset(); });
    Join();
    members_.clear();
    hosts_.clear();
  }
  void TearDown() override { End(); }
  void Join() {
    for (std::thread& thread : serving_) thread.join();
    serving_.clear();
  }

  ParameterServer& ServerOf(size_t index) { return *Query<ParameterServer>(*members_[index]); }
  ParameterClient* ClientOf(size_t rank) { return Query<ParameterClient>(*ranks_[rank]); }
  Status Run(size_t rank, const Transfer& transfer) {
    Work* work = nullptr;
    ENGINE_RETURN_IF_ERROR(ranks_[rank]->Submit(transfer, &work));
    return Finish(work);
  }
  Status Register(size_t rank) {
    const ServedSpan span{.count = kCount};
    const ServedBucket bucket{.key = kKey, .count = kCount, .spans = {&span, 1}};
    return ClientOf(rank)->Register({&bucket, 1}, optimizer_, 10000);
  }

  std::shared_ptr<test::MemoryStoreTable> store_ = std::make_shared<test::MemoryStoreTable>();
  std::vector<std::unique_ptr<test::MemoryHost>> hosts_;
  TestOptimizer optimizer_;
  std::vector<std::unique_ptr<ZmqPsCommunicator>> ranks_;
  std::vector<std::unique_ptr<ServerMember>> members_;
  std::vector<std::thread> serving_;
  std::vector<Status> ends_;
};

TEST_F(Members, KeepParametersInStepByDefaultAndEndWithTheRanks) {
  Start(3, 2);
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_NE(ClientOf(rank), nullptr);
    EXPECT_EQ(ClientOf(rank)->traits().mode, UpdateMode::kSync);
  }
  ranks_.clear();
  Join();
  for (const Status& end : ends_) EXPECT_TRUE(end.ok()) << end.message();
}

TEST_F(Members, AddUpOnlyWhereWorkersUpdate) {
  Start(2, 1, {.encrypt = true, .update = "workers"});
  EXPECT_EQ(ClientOf(0), nullptr);
  EXPECT_FALSE(ranks_[0]->traits().kinds & Bit(TransferKind::kPush));
  RunWorkers(2, [&](uint32_t rank) {
    std::vector<float> sum(1000, 1.0f);
    EXPECT_TRUE(Run(rank, {.send = sum.data(), .recv = sum.data(), .count = 1000, .key = 3}).ok());
    EXPECT_THAT(sum, ::testing::Each(2.0f));
    EXPECT_EQ(
        Run(rank, {.kind = TransferKind::kPull, .recv = sum.data(), .count = 1, .key = 3}).code(),
        StatusCode::kUnsupported);
  });
}

// Its key is another one, and the servers have not seen it.
TEST_F(Members, AdmitTheKeyOfANewProcess) {
  const CommunicatorSettings settings{.encrypt = true, .update = "async"};
  Start(2, 1, settings);
  RunWorkers(2, [&](uint32_t rank) { ASSERT_TRUE(Register(rank).ok()); });
  ASSERT_TRUE(ClientOf(1)->BeginStep({.step = 1, .weight = 1}).ok());
  const std::vector<float> gradient(kCount, 1.0f);
  ASSERT_TRUE(
      Run(1, {.kind = TransferKind::kPush, .send = gradient.data(), .count = kCount, .key = kKey})
          .ok());
  ranks_[1].reset();
  test::MemoryHost host(
      RankInfo{.rank = 1, .world_size = 2, .local_world_size = 2, .servers = 1, .incarnation = 1},
      store_);
  auto renewed = ZmqPsCommunicator::Create(host, settings);
  ASSERT_TRUE(renewed.ok()) << renewed.status().message();
  ranks_[1] = std::move(*renewed);
  ASSERT_TRUE(Register(1).ok());
  uint64_t step = 0;
  EXPECT_TRUE(ClientOf(1)->LastStep(5000, &step).ok());
  EXPECT_EQ(step, 1u);
  ranks_[1].reset();
}

TEST_F(Members, LeaveNoServerToRanks) {
  test::MemoryHost host(RankInfo{.world_size = 1, .servers = 1, .rendezvous_timeout_ms = 100},
                        store_);
  const auto created = ZmqPsCommunicator::Create(host, {.servers = 1});
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.status().code(), StatusCode::kConfig);
  EXPECT_THAT(created.status().message(), ::testing::HasSubstr("leave it out"));
}

TEST_F(Members, WhoDoesNotAppearIsNamed) {
  test::MemoryHost rank(RankInfo{.world_size = 1, .servers = 2, .rendezvous_timeout_ms = 100},
                        store_);
  const auto alone = ZmqPsCommunicator::Create(rank, {});
  ASSERT_FALSE(alone.ok());
  EXPECT_EQ(ServerOfId(alone.status().rank()), 0) << alone.status().message();
  EXPECT_THAT(alone.status().message(), ::testing::HasSubstr("servers 0 and 1 of 2"));
  auto store = std::make_shared<test::MemoryStoreTable>();
  test::MemoryHost server(
      RankInfo{.world_size = 2, .servers = 1, .is_server = 1, .rendezvous_timeout_ms = 100}, store);
  const auto member = ServerMember::Create(server, {});
  ASSERT_FALSE(member.ok());
  EXPECT_EQ(member.status().rank(), 0) << member.status().message();
  EXPECT_THAT(member.status().message(), ::testing::HasSubstr("ranks 0, 1 of 2"));
}

TEST_F(Members, AnyNumberOfRanksMayHostOne) {
  constexpr uint32_t kRanks = 3;
  constexpr size_t kFull = 1 << 19;  // slices that are full: encrypted they are a little longer
  for (const int64_t servers : {1, 2, 3}) {
    for (const bool encrypt : {false, true}) {
      SCOPED_TRACE(std::to_string(servers) + (encrypt ? " servers, encrypted" : " servers"));
      Start(kRanks, 0, {.servers = servers, .encrypt = encrypt});
      RunWorkers(kRanks, [&](uint32_t rank) {
        std::vector<float> data(kFull, static_cast<float>(rank + 1));
        const Status status =
            Run(rank, {.send = data.data(), .recv = data.data(), .count = kFull, .key = 9});
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(data, std::vector<float>(data.size(), 6.0f));
      });
      End();
    }
  }
}

// Rank 2 hosts no server: only rank 0's can tell that it is gone.
TEST_F(Members, ARankWithoutServerThatGoesIsNamed) {
  constexpr uint32_t kRanks = 3;
  Start(kRanks, 0, {.servers = 1});
  RunWorkers(kRanks, [&](uint32_t rank) {
    if (rank == 2) return ranks_[rank].reset();
    std::vector<float> data(1000);
    const Status status =
        Run(rank, {.send = data.data(), .recv = data.data(), .count = 1000, .key = 9});
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), 2) << status.message();
  });
}

}  // namespace
}  // namespace engine::zmq_ps
