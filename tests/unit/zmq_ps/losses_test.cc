// Runs that go on without a rank, and with another process in its place.
#include <gmock/gmock.h>

#include <atomic>

#include "breaking_proxy.h"
#include "training.h"

namespace engine::zmq_ps {
namespace {

constexpr ParameterTraits kAsync{.mode = UpdateMode::kAsync};
constexpr ParameterTraits kBounded{.mode = UpdateMode::kBounded, .staleness = 1};

class Losses : public ::testing::Test {
 protected:
  void Start(uint32_t workers, const ParameterTraits& update, int64_t lost_after_ms = 50) {
    ClusterSettings settings{
        .workers = workers, .servers = 2, .lost_after_ms = lost_after_ms, .update = update};
    // The last worker can end without a message.
    settings.faults = [=, this](uint32_t endpoint) -> FaultInjector {
      if (endpoint != 2 + workers - 1) return {};
      return [this](const Message*) { return cut_ ? SendFault::kLost : SendFault::kNone; };
    };
    cluster_ = std::make_unique<Cluster>(settings);
    ASSERT_TRUE(cluster_->ok());
    weights_.resize(workers);
    RunWorkers(workers, [&](uint32_t worker) { Begin(worker); });
  }
  void Begin(uint32_t worker) {
    const Status status = Prepare(cluster_->client(worker), worker, buckets_, cluster_->optimizer(),
                                  &weights_[worker]);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void Kill(uint32_t worker) {
    cut_ = true;
    cluster_->Destroy(worker);
    cut_ = false;
  }
  Status Steps(uint32_t worker, int first, int last) {
    return Train(*cluster_, worker, buckets_, first, last, &weights_[worker]);
  }
  size_t LinesWith(const std::string& text) const {
    size_t lines = 0;
    for (const std::string& line : cluster_->log()) lines += line.find(text) != std::string::npos;
    return lines;
  }

  std::atomic<bool> cut_{false};
  const Buckets buckets_ = {{1, 3000}, {2, 40000}};
  std::unique_ptr<Cluster> cluster_;
  std::vector<Weights> weights_;
};

TEST_F(Losses, OthersGoOnWithoutARankThatIsLostAndWithItsNextProcess) {
  for (const ParameterTraits& update : {kAsync, kBounded}) {
    SCOPED_TRACE(Name(update.mode));
    Start(3, update);
    const auto go_on = [&](uint32_t worker, int first, int last) {
      const Status steps = Steps(worker, first, last);
      EXPECT_TRUE(steps.ok()) << "worker " << worker << ": " << steps.message();
      const Status barrier = cluster_->Run(worker, {.kind = TransferKind::kBarrier});
      EXPECT_TRUE(barrier.ok()) << "worker " << worker << ": " << barrier.message();
    };
    RunWorkers(3, [&](uint32_t worker) {
      go_on(worker, 1, 3);
      if (worker == 2) return Kill(2);
      go_on(worker, 4, 6);
      float sum = 1;
      EXPECT_TRUE(cluster_->Run(worker, {.send = &sum, .recv = &sum, .count = 1, .key = 9}).ok());
      EXPECT_EQ(sum, 2.0f);
    });
    EXPECT_LE(LinesWith("going on without rank 2"), 2u) << "one line of each server";
    EXPECT_GE(LinesWith("going on without rank 2"), 1u);

    ASSERT_TRUE(cluster_->Renew(2, 1).ok());
    Begin(2);
    uint64_t last = 0;
    EXPECT_TRUE(cluster_->client(2).LastStep(5000, &last).ok());
    EXPECT_EQ(last, 3u);
    // The third barrier of two ranks, the first one of the new process.
    RunWorkers(3, [&](uint32_t worker) { worker == 2 ? go_on(2, 4, 6) : go_on(worker, 7, 9); });
    EXPECT_GE(LinesWith("rank 2 is back"), 1u);
    cluster_.reset();
  }
}

TEST_F(Losses, ALostRankThatAloneHasWhatIsWantedIsNamed) {
  Start(3, kAsync);
  Kill(2);
  RunWorkers(2, [&](uint32_t worker) {
    float value = 0;
    const Status status = cluster_->Run(
        worker,
        {.kind = TransferKind::kBroadcast, .root = 2, .recv = &value, .count = 1, .key = 9});
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), 2);
  });
}

TEST_F(Losses, InStepANewProcessIsRefusedBecauseItsRankHasExpired) {
  Start(2, {.mode = UpdateMode::kSync});
  Kill(1);
  const Status status = cluster_->Renew(1, 1);
  EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
  EXPECT_THAT(status.message(), ::testing::HasSubstr("rank 1 has expired"));
}

TEST_F(Losses, WhoWaitsForValuesOfALostRankIsTold) {
  cluster_ = std::make_unique<Cluster>(ClusterSettings{.workers = 2, .update = kAsync});
  ASSERT_TRUE(cluster_->ok());
  ASSERT_TRUE(Register(cluster_->client(1), buckets_, cluster_->optimizer()).ok());
  RunWorkers(2, [&](uint32_t worker) {
    if (worker == 0) return cluster_->Destroy(0);
    std::vector<float> values(3000);
    const Status status = cluster_->client(1).Load(1, -1, values.data(), 20000);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), 0) << status.message();
  });
}

// Its process lives, but was without a connection for too long.
TEST(Loss, OneThatHasExpiredIsRefused) {
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kAsync}) {
    SCOPED_TRACE(Name(mode));
    Proxies proxies;
    Cluster cluster({.workers = 2,
                     .servers = 1,
                     .lost_after_ms = 1,
                     .update = ParameterTraits{.mode = mode},
                     .route = RouteBy(&proxies, 0, 300000)});
    ASSERT_TRUE(cluster.ok());
    const Buckets buckets = {{1, 50000}};
    RunWorkers(2, [&](uint32_t worker) {
      Weights weights;
      Status status =
          Prepare(cluster.client(worker), worker, buckets, cluster.optimizer(), &weights);
      if (status.ok()) status = Train(cluster, worker, buckets, 1, 5, &weights);
      EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    });
    EXPECT_GT(proxies[0]->breaks() + proxies[1]->breaks(), 0);
  }
}

}  // namespace
}  // namespace engine::zmq_ps
