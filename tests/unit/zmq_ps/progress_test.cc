// Threads that wait for transfers and make the worker's progress meanwhile.
#include <atomic>
#include <thread>

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

}  // namespace
}  // namespace engine::zmq_ps
