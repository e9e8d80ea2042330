// Threads that wait for transfers and make the worker's progress meanwhile.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "breaking_proxy.h"
#include "cluster.h"

namespace engine::zmq_ps {
namespace {

struct Chain {  // transfers of which each submits the next one when it ends
  Cluster* cluster;
  uint32_t worker;
  std::vector<float> data = std::vector<float>(3000, 1.0f);
  std::atomic<int> left{30};
  std::atomic<Work*> last{nullptr};

  void Next() {
    Work* work = nullptr;
    const uint64_t key = 1000;
    const Status status = cluster->Submit(
        worker, {.send = data.data(), .recv = data.data(), .count = 3000, .key = key}, &work);
    ASSERT_TRUE(status.ok()) << status.message();
    if (Work* const before = last.exchange(work)) before->Release();
    work->OnDone([](void* chain) { static_cast<Chain*>(chain)->Ended(); }, this);
  }
  void Ended() {
    std::fill(data.begin(), data.end(), 1.0f);
    if (left.fetch_sub(1) > 1) Next();
  }
};

TEST(Progress, ManyThreadsWaitWhileCallbacksSubmit) {
  constexpr uint32_t kWorkers = 2;
  constexpr int kThreads = 3, kRounds = 40;
  Cluster cluster({.workers = kWorkers, .servers = 2, .slice_bytes = 1 << 12});
  ASSERT_TRUE(cluster.ok());
  RunWorkers(kWorkers, [&](uint32_t worker) {
    Chain chain{.cluster = &cluster, .worker = worker};
    chain.Next();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::vector<float> data(5000 * (t + 1));
        for (int round = 0; round < kRounds; ++round) {
          std::fill(data.begin(), data.end(), static_cast<float>(round));
          const Status status = cluster.Run(worker, {.send = data.data(),
                                                     .recv = data.data(),
                                                     .count = static_cast<int64_t>(data.size()),
                                                     .key = static_cast<uint64_t>(t + 1)});
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_EQ(data, std::vector<float>(data.size(), 2.0f * static_cast<float>(round)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto deadline = kit::DeadlineIn(30000);
    while (chain.left > 0 && kit::Clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(chain.left, 0);
    if (Work* const work = chain.last) work->Release();
  });
}

TEST(Progress, AWaitEndsWithTheWorker) {
  Cluster cluster({.workers = 2, .servers = 1});
  ASSERT_TRUE(cluster.ok());
  float value = 1;
  Work* work = nullptr;
  ASSERT_TRUE(
      cluster.Submit(0, {.send = &value, .recv = &value, .count = 1, .key = 1}, &work).ok());
  std::thread waiting([&] { EXPECT_EQ(work->WaitHost(30000).code(), StatusCode::kAborted); });
  // It waits for the other worker, which does not come.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  cluster.Destroy(0);
  waiting.join();
  work->Release();
}

// Four times as long as the timeout, over a link that moves all the time: at the worker that it is
// of, and at the one that waits for it.
TEST(Deadlines, BoundTimeWithoutProgress) {
  constexpr int kCount = 1 << 20;
  Proxies proxies;
  Cluster cluster({.workers = 2, .servers = 1, .route = RouteBy(&proxies, 1)});
  ASSERT_TRUE(cluster.ok());
  proxies[0]->SlowDown();
  const Clock::time_point begin = Clock::now();
  RunWorkers(2, [&](uint32_t worker) {
    std::vector<float> data(kCount, 1.0f);
    const Transfer transfer{
        .send = data.data(), .recv = data.data(), .count = kCount, .key = 1, .timeout_ms = 500};
    const Status status = cluster.Run(worker, transfer);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  EXPECT_GT(Clock::now() - begin, std::chrono::milliseconds(2000)) << "nothing was tested";
}

// The second worker does not come, and then the second server does not answer either, which may be
// why. Both at once, since they wait.
TEST(Deadlines, NameWhoIsMissing) {
  RunWorkers(2, [](uint32_t server_is_silent) {
    Proxies proxies;
    Cluster cluster({.workers = 2,
                     .servers = 2,
                     .heartbeat = {.interval_ms = 60000, .timeout_ms = 120000},
                     .route = RouteBy(&proxies)});
    ASSERT_TRUE(cluster.ok());
    std::vector<float> data(200000, 1.0f);
    const Transfer transfer{
        .send = data.data(), .recv = data.data(), .count = 200000, .key = 1, .timeout_ms = 500};
    RunWorkers(2, [&](uint32_t worker) {
      const Transfer barrier{.kind = TransferKind::kBarrier};
      EXPECT_TRUE(cluster.Run(worker, barrier).ok());
    });
    if (server_is_silent) proxies[1]->Freeze();
    const Status status = cluster.Run(0, transfer);
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
    EXPECT_EQ(status.rank(), server_is_silent ? ServerId(1) : 1) << status.message();
    EXPECT_THAT(status.message(), ::testing::HasSubstr("all-reduce of 200000 float32"));
  });
}

}  // namespace
}  // namespace engine::zmq_ps
