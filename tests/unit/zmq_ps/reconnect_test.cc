// Connections that break in the middle of transfers cost time and nothing else.
#include <gmock/gmock.h>

#include "breaking_proxy.h"
#include "cluster.h"
#include "training.h"

namespace engine::zmq_ps {
namespace {

TEST(Reconnect, EverySumIsRightAlthoughConnectionsBreak) {
  constexpr uint32_t kWorkers = 2;
  constexpr size_t kCount = 400000;
  std::vector<std::unique_ptr<BreakingProxy>> proxies;
  ClusterSettings settings{.workers = kWorkers, .servers = 2};
  settings.route = [&](const std::string& endpoint) {
    proxies.push_back(std::make_unique<BreakingProxy>(endpoint, 1500000));
    return proxies.back()->endpoint();
  };
  {
    Cluster cluster(settings);
    ASSERT_TRUE(cluster.ok());
    RunWorkers(kWorkers, [&](uint32_t worker) {
      for (int step = 1; step <= 6; ++step) {
        std::vector<float> data(kCount, static_cast<float>(step * static_cast<int>(worker + 1)));
        const Status status = cluster.Run(
            worker, {.send = data.data(), .recv = data.data(), .count = kCount, .key = 4});
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_THAT(data, ::testing::Each(static_cast<float>(step * 3)));
      }
    });
    for (const auto& proxy : proxies) proxy->BreakNoMore();
    EXPECT_GT(cluster.server(0).traffic().repeated + cluster.server(1).traffic().repeated, 0u)
        << "no request came twice: nothing was tested";
  }
  int breaks = 0;
  for (const auto& proxy : proxies) breaks += proxy->breaks();
  EXPECT_GT(breaks, 0) << "no connection broke: nothing was tested";
}

TEST(Reconnect, ParametersAreRightAlthoughConnectionsBreak) {
  const TrainingSettings training{.workers = 2, .steps = 5, .units = {{1, 300000}, {2, 5000}}};
  std::vector<std::unique_ptr<BreakingProxy>> proxies;
  ClusterSettings settings{
      .workers = 2, .servers = 2, .update = ParameterTraits{.mode = UpdateMode::kSync}};
  settings.route = [&](const std::string& endpoint) {
    proxies.push_back(std::make_unique<BreakingProxy>(endpoint, 1000000));
    return proxies.back()->endpoint();
  };
  {
    Cluster cluster(settings);
    ASSERT_TRUE(cluster.ok());
    const Weights expected = Expected(training);
    for (const Weights& weights : TrainAll(cluster, training)) EXPECT_EQ(weights, expected);
    for (const auto& proxy : proxies) proxy->BreakNoMore();
    EXPECT_GT(cluster.server(0).traffic().repeated + cluster.server(1).traffic().repeated, 0u)
        << "no request came twice: nothing was tested";
  }
  int breaks = 0;
  for (const auto& proxy : proxies) breaks += proxy->breaks();
  EXPECT_GT(breaks, 0) << "no connection broke: nothing was tested";
}

}  // namespace
}  // namespace engine::zmq_ps
