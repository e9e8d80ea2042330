// Lost, repeated and reordered messages change nothing: every push is applied exactly once.
#include <cstring>
#include <random>

#include "cluster.h"
#include "faulty_link.h"

namespace engine::zmq_ps {
namespace {

constexpr uint32_t kWorkers = 3;
constexpr int kSteps = 4;

// Results of all steps of one worker, one after the other.
using Bytes = std::vector<float>;

std::vector<float> Inputs(uint32_t worker, int step, size_t count) {
  std::mt19937 random(worker * 1000 + static_cast<uint32_t>(step));
  std::uniform_real_distribution<float> any(-1000, 1000);
  std::vector<float> inputs(count);
  for (float& x : inputs) x = any(random);
  return inputs;
}

// Several transfers of several kinds at once, with keys that come back in every step.
Bytes Train(Cluster& cluster, uint32_t worker) {
  constexpr int64_t kCounts[] = {1, 3000, 70001, 512};
  Bytes results;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::vector<float>> data;
    for (const int64_t count : kCounts) {
      data.push_back(Inputs(worker, step, static_cast<size_t>(count)));
    }
    const std::vector<float> own = Inputs(worker, step + 100, static_cast<size_t>(kCounts[1]));
    std::vector<float> gathered(static_cast<size_t>(kCounts[1]) * kWorkers);
    std::vector<Transfer> transfers;
    for (size_t i = 0; i < std::size(kCounts); ++i) {
      transfers.push_back({.send = data[i].data(),
                           .recv = data[i].data(),
                           .count = kCounts[i],
                           .key = i + 1,
                           .priority = static_cast<int32_t>(i)});
    }
    transfers.push_back({.kind = TransferKind::kAllGather,
                         .send = own.data(),
                         .recv = gathered.data(),
                         .count = kCounts[1],
                         .key = 77});
    transfers.push_back({.kind = TransferKind::kBarrier});
    std::vector<Work*> works(transfers.size());
    for (size_t i = 0; i < transfers.size(); ++i) {
      const Status status = cluster.Submit(worker, transfers[i], &works[i]);
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) return {};
    }
    for (Work* work : works) {
      const Status status = work->WaitHost(60000);
      EXPECT_TRUE(status.ok()) << status.message();
      work->Release();
      if (!status.ok()) return {};
    }
    data.push_back(gathered);
    for (const auto& result : data) results.insert(results.end(), result.begin(), result.end());
  }
  return results;
}

std::vector<Bytes> TrainAll(const ClusterSettings& settings, uint64_t* repeated = nullptr) {
  Cluster cluster(settings);
  std::vector<Bytes> results(kWorkers);
  if (!cluster.ok()) return results;
  RunWorkers(kWorkers, [&](uint32_t worker) { results[worker] = Train(cluster, worker); });
  for (uint32_t i = 0; repeated && i < settings.servers; ++i) {
    *repeated += cluster.server(i).traffic().repeated;
  }
  return results;
}

bool SameBits(const Bytes& a, const Bytes& b) {
  return !a.empty() && a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Faults, ResultsAreTheSameToTheBitWhenMessagesAreLostRepeatedAndReordered) {
  ClusterSettings settings{.workers = kWorkers, .servers = 2};
  const std::vector<Bytes> expected = TrainAll(settings);
  settings.resend_ms = 10;
  for (const uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FaultCounts counts;
    settings.faults = [&](uint32_t endpoint) -> LinkWrapper {
      return [&counts, seed, endpoint, links = 0u](std::unique_ptr<Link> link) mutable {
        const uint32_t own_seed = seed * 1000 + endpoint * 10 + links++;
        return std::make_unique<FaultyLink>(std::move(link), own_seed, 0.1, &counts);
      };
    };
    uint64_t repeated = 0;
    const std::vector<Bytes> results = TrainAll(settings, &repeated);
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      EXPECT_TRUE(SameBits(results[worker], expected[worker])) << "worker " << worker;
    }
    EXPECT_GT(counts.dropped, 0u);
    EXPECT_GT(counts.repeated, 0u);
    EXPECT_GT(counts.reordered, 0u);
    EXPECT_GT(repeated, 0u) << "no push came twice: nothing was tested";
  }
}

}  // namespace
}  // namespace engine::zmq_ps
