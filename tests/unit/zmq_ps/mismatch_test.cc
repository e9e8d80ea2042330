// Ranks that disagree about a transfer all learn of it; nobody gets a sum of different things.
#include <gmock/gmock.h>

#include "training.h"

namespace engine::zmq_ps {
namespace {

struct Disagreement {
  const char* what;
  Transfer first;
  Transfer other;  // of the last worker
};

std::vector<Disagreement> Disagreements() {
  return {
      {"count", {.count = 1000, .key = 5}, {.count = 1001, .key = 5}},
      {"count, slices", {.count = 1000, .key = 5}, {.count = 200000, .key = 5}},
      {"dtype", {.count = 1000, .key = 5}, {.dtype = DType::kInt32, .count = 1000, .key = 5}},
      {"reduction",
       {.count = 1000, .key = 5},
       {.reduction = Reduction::kMax, .count = 1000, .key = 5}},
      {"kind",
       {.count = 1000, .key = 5},
       {.kind = TransferKind::kAllGather, .count = 1000, .key = 5}},
      {"barrier", {.count = 1000}, {.kind = TransferKind::kBarrier}},
      {"root",
       {.kind = TransferKind::kBroadcast, .root = 0, .count = 10, .key = 5},
       {.kind = TransferKind::kBroadcast, .root = 1, .count = 10, .key = 5}},
  };
}

TEST(Mismatch, IsRefusedOnAllWorkersOfTheRound) {
  for (const uint32_t workers : {2u, 3u}) {
    for (const Disagreement& pair : Disagreements()) {
      SCOPED_TRACE(std::string(pair.what) + ", workers " + std::to_string(workers));
      Cluster cluster({.workers = workers, .servers = workers});
      ASSERT_TRUE(cluster.ok());
      RunWorkers(workers, [&](uint32_t worker) {
        std::vector<float> send(200000 * workers), recv(200000 * workers);
        Transfer transfer = worker + 1 == workers ? pair.other : pair.first;
        transfer.send = send.data();
        transfer.recv = recv.data();
        transfer.timeout_ms = 20000;
        const Status status = cluster.Run(worker, transfer);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
            << "worker " << worker << ": " << status.message();
        EXPECT_THAT(status.message(), ::testing::HasSubstr("equal keys to equal transfers"));
      });
    }
  }
}

TEST(Mismatch, ServersThatOnlyAddUpSaySo) {
  Cluster cluster({.workers = 1, .servers = 1});
  ASSERT_TRUE(cluster.ok());
  Works works;
  TestOptimizer optimizer;
  ServedParameters client({.mode = UpdateMode::kSync}, 1 << 16, cluster.worker(0), works, {});
  const Status status = Register(client, {{5, 1000}}, optimizer);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_THAT(status.message(), ::testing::HasSubstr("option update"));
}

}  // namespace
}  // namespace engine::zmq_ps
