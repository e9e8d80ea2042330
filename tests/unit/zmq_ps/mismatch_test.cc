// Ranks that disagree about a transfer all learn of it; nobody gets a sum of different things.
#include <gmock/gmock.h>

#include "cluster.h"

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

// Keys find each other whatever the order; without a key, order is all there is.
TEST(Mismatch, TransfersWithKeysMayBeSubmittedInAnyOrder) {
  constexpr uint32_t kWorkers = 3;
  Cluster cluster({.workers = kWorkers, .servers = 2});
  ASSERT_TRUE(cluster.ok());
  RunWorkers(kWorkers, [&](uint32_t worker) {
    constexpr size_t kKeys = 12;
    std::vector<std::vector<float>> data(kKeys);
    std::vector<Work*> works(kKeys);
    for (size_t n = 0; n < kKeys; ++n) {
      const size_t key = (n * 5 + worker * 7) % kKeys;  // another order on each worker
      data[key].assign(1000 + key, static_cast<float>(key + 1));
      const Status status = cluster.Submit(worker,
                                           {.send = data[key].data(),
                                            .recv = data[key].data(),
                                            .count = static_cast<int64_t>(data[key].size()),
                                            .key = key + 1},
                                           &works[key]);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (size_t key = 0; key < kKeys; ++key) {
      const Status status = works[key]->WaitHost(30000);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_THAT(data[key], ::testing::Each(static_cast<float>((key + 1) * kWorkers)));
      works[key]->Release();
    }
  });
}

}  // namespace
}  // namespace engine::zmq_ps
