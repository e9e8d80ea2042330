// What goes over the wire besides tensors.
#include <atomic>

#include "cluster.h"
#include "training.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

// Bytes that an endpoint has sent.
struct Sent {
  std::atomic<uint64_t> frames{0}, tensors{0};

  SendFault See(const Message* message) {
    Header header;
    if (!message || Decode(message->header, &header)) return SendFault::kNone;
    frames += message->header.size() + message->body.size() + message->rows.size();
    const bool has_tensor =
        header.kind == MessageKind::kPush || header.kind == MessageKind::kAnswer;
    if (has_tensor) tensors += message->body.size();
    return SendFault::kNone;
  }
};

class Traffic : public ::testing::Test {
 protected:
  // One server; endpoint 0.
  ClusterSettings Counted(ClusterSettings settings) {
    settings.servers = 1;
    settings.faults = [this](uint32_t endpoint) -> FaultInjector {
      return [&sent = endpoint == 0 ? out_ : in_](const Message* message) {
        return sent.See(message);
      };
    };
    return settings;
  }
  Sent in_, out_;  // of the server
};

TEST_F(Traffic, IsOnePercentMoreThanTheTensorsAtMost) {
  constexpr uint32_t kWorkers = 2;
  constexpr size_t kCount = 1 << 20;
  Cluster cluster(Counted({.workers = kWorkers}));
  ASSERT_TRUE(cluster.ok());
  RunWorkers(kWorkers, [&](uint32_t worker) {
    std::vector<float> data(kCount, 1.0f);
    const Status status =
        cluster.Run(worker, {.send = data.data(), .recv = data.data(), .count = kCount, .key = 1});
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(data.front(), kWorkers);
    EXPECT_EQ(data.back(), kWorkers);
  });
  constexpr uint64_t kPayload = kCount * sizeof(float) * kWorkers;
  for (const Sent* const sent : {&in_, &out_}) {
    EXPECT_EQ(sent->tensors, kPayload);
    EXPECT_LE(static_cast<double>(sent->frames), 1.01 * static_cast<double>(kPayload));
  }
}

// Of a bucket with rows, no others travel than those that are named.
TEST_F(Traffic, IsThatOfTheRowsThatAreNamed) {
  constexpr int64_t kRow = 50, kRows = 400;
  Cluster cluster(Counted({.workers = 1, .update = ParameterTraits{.mode = UpdateMode::kSync}}));
  ASSERT_TRUE(cluster.ok());
  const Buckets buckets = {{5, kRow * kRows, kRow}};
  Weights weights;
  ASSERT_TRUE(Prepare(cluster.client(0), 0, buckets, cluster.optimizer(), &weights).ok());
  ASSERT_TRUE(cluster.client(0).BeginStep({.step = 1, .weight = 1}).ok());
  const uint64_t in = in_.tensors, out = out_.tensors;
  const std::vector<int32_t> rows = {0, 7, 399};
  for (const TransferKind kind : {TransferKind::kPush, TransferKind::kPull}) {
    cluster.client(0).SelectRows(5, rows);
    ASSERT_TRUE(cluster
                    .Run(0, {.kind = kind,
                             .send = weights.data(),
                             .recv = weights.data(),
                             .count = kRow * kRows,
                             .key = 5})
                    .ok());
  }
  EXPECT_EQ(in_.tensors - in, 3 * kRow * sizeof(float));
  EXPECT_EQ(out_.tensors - out, 3 * kRow * sizeof(float));
}

}  // namespace
}  // namespace engine::zmq_ps
