// What goes over the wire besides tensors.
#include <thread>

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

// Of a bucket with rows, no others travel than those that are named.
TEST(Traffic, IsThatOfTheRowsThatAreNamed) {
  constexpr int64_t kRow = 50, kRows = 400;
  Cluster cluster(
      {.workers = 1, .servers = 1, .update = ParameterTraits{.mode = UpdateMode::kSync}});
  ASSERT_TRUE(cluster.ok());
  const Buckets buckets = {{5, kRow * kRows, kRow}};
  Weights weights;
  ASSERT_TRUE(Prepare(cluster.client(0), 0, buckets, cluster.optimizer(), &weights).ok());
  ASSERT_TRUE(cluster.client(0).BeginStep({.step = 1, .weight = 1}).ok());
  const Traffic& traffic = cluster.server(0).traffic();
  const uint64_t in = traffic.payload_in, out = traffic.payload_out;
  const std::vector<int32_t> rows = {0, 7, 399};
  Transfer transfer{
      .kind = TransferKind::kPush, .send = weights.data(), .count = kRow * kRows, .key = 5};
  cluster.client(0).SelectRows(5, rows);
  ASSERT_TRUE(cluster.Run(0, transfer).ok());
  transfer.kind = TransferKind::kPull;
  transfer.recv = weights.data();
  cluster.client(0).SelectRows(5, rows);
  ASSERT_TRUE(cluster.Run(0, transfer).ok());
  // What goes out is counted after it has gone.
  const uint64_t expected = out + 3 * kRow * sizeof(float);
  const auto deadline = kit::DeadlineIn(20000);
  while (traffic.payload_out < expected && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(traffic.payload_in - in, 3 * kRow * sizeof(float));
  EXPECT_EQ(traffic.payload_out, expected);
}

}  // namespace
}  // namespace engine::zmq_ps
