// What goes over the wire besides tensors.
#include "cluster.h"
#include "training.h"

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
  const Traffic& traffic = cluster.server(0).traffic();
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
  for (uint32_t server = 0; server < kServers; ++server) {
    const uint64_t bytes = cluster.server(server).traffic().payload_in;
    most = std::max(most, bytes);
    all += bytes;
  }
  EXPECT_LE(static_cast<double>(most * kServers), 1.05 * static_cast<double>(all));
}

// Of a unit with rows, no others travel than those that are named.
TEST(Traffic, IsThatOfTheRowsThatAreNamed) {
  constexpr int64_t kRow = 50, kRows = 400;
  Cluster cluster(
      {.workers = 1, .servers = 1, .update = ParameterTraits{.mode = UpdateMode::kSync}});
  ASSERT_TRUE(cluster.ok());
  const TrainingSettings training{.workers = 1, .units = {{5, kRow * kRows, kRow}}};
  Weights weights;
  ASSERT_TRUE(Prepare(cluster.client(0), 0, training, cluster.optimizer(), &weights).ok());
  ASSERT_TRUE(cluster.client(0).BeginStep({.step = 1, .weight = 1}).ok());
  const Traffic& traffic = cluster.server(0).traffic();
  const uint64_t in = traffic.payload_in, out = traffic.payload_out;
  const std::vector<int32_t> rows = {0, 7, 399};
  Transfer transfer{.kind = TransferKind::kPush,
                    .send = weights.data(),
                    .count = kRow * kRows,
                    .key = 5,
                    .rows = rows.data(),
                    .row_count = 3};
  ASSERT_TRUE(cluster.Run(0, transfer).ok());
  transfer.kind = TransferKind::kPull;
  transfer.recv = weights.data();
  ASSERT_TRUE(cluster.Run(0, transfer).ok());
  EXPECT_EQ(traffic.payload_in - in, 3 * kRow * sizeof(float));
  EXPECT_EQ(traffic.payload_out - out, 3 * kRow * sizeof(float));
}

}  // namespace
}  // namespace engine::zmq_ps
