// What goes over the wire besides tensors.
#include "cluster.h"

namespace engine::zmq_ps {
namespace {

TEST(Traffic, IsOnePercentMoreThanTheTensorsAtMost) {
  constexpr uint32_t kWorkers = 2;
  constexpr size_t kCount = 1 << 20;
  Cluster cluster({.workers = kWorkers, .servers = 1, .slice_bytes = 1 << 16});
  ASSERT_TRUE(cluster.ok());
  RunWorkers(kWorkers, [&](uint32_t worker) {
    std::vector<float> data(kCount, 1.0f);
    const Status status =
        cluster.Run(worker, {.send = data.data(), .recv = data.data(), .count = kCount, .key = 1});
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(data.front(), kWorkers);
    EXPECT_EQ(data.back(), kWorkers);
  });
  const ServerTraffic traffic = cluster.server(0).traffic();
  const uint64_t payload = kCount * sizeof(float) * kWorkers;
  EXPECT_EQ(traffic.payload_in, payload);
  EXPECT_EQ(traffic.payload_out, payload);
  EXPECT_LE(static_cast<double>(traffic.frames_in), 1.01 * static_cast<double>(payload));
  EXPECT_LE(static_cast<double>(traffic.frames_out), 1.01 * static_cast<double>(payload));
}

TEST(Traffic, IsSpreadOverAllServers) {
  constexpr uint32_t kServers = 3;
  Cluster cluster({.workers = 1, .servers = kServers});
  ASSERT_TRUE(cluster.ok());
  std::vector<float> data(1 << 18, 1.0f);
  for (uint64_t key = 1; key <= 40; ++key) {
    const int64_t count = static_cast<int64_t>(key % 4 == 0 ? data.size() : 100 * key);
    ASSERT_TRUE(
        cluster.Run(0, {.send = data.data(), .recv = data.data(), .count = count, .key = key})
            .ok());
  }
  uint64_t most = 0, all = 0;
  for (const uint64_t bytes : cluster.worker(0).PushedBytes()) {
    most = std::max(most, bytes);
    all += bytes;
  }
  EXPECT_LE(static_cast<double>(most * kServers), 1.05 * static_cast<double>(all));
}

}  // namespace
}  // namespace engine::zmq_ps
