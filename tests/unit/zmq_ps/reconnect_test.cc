// Connections that break in the middle of transfers cost time and nothing else; those that fall
// silent are noticed.

#include "breaking_proxy.h"
#include "training.h"

namespace engine::zmq_ps {
namespace {

// A cluster whose connections break each time that so many bytes have gone to a server. Ends with
// the workers, and fails if nothing was tested.
void RunWithBreaks(ClusterSettings settings, size_t break_after_bytes,
                   const std::function<void(Cluster&, uint32_t worker)>& body) {
  Proxies proxies;
  settings.route = RouteBy(&proxies, 0, break_after_bytes);
  {
    Cluster cluster(settings);
    ASSERT_TRUE(cluster.ok());
    RunWorkers(settings.workers, [&](uint32_t worker) { body(cluster, worker); });
    for (const auto& proxy : proxies) proxy->BreakNoMore();
  }
  int breaks = 0;
  for (const auto& proxy : proxies) breaks += proxy->breaks();
  EXPECT_GT(breaks, 0) << "no connection broke: nothing was tested";
}

TEST(Reconnect, EverySumIsRightAlthoughConnectionsBreak) {
  constexpr size_t kCount = 400000;
  RunWithBreaks({.workers = 2, .servers = 2}, 1500000, [](Cluster& cluster, uint32_t worker) {
    for (int step = 1; step <= 6; ++step) {
      std::vector<float> data(kCount, static_cast<float>(step * static_cast<int>(worker + 1)));
      const Status status = cluster.Run(
          worker, {.send = data.data(), .recv = data.data(), .count = kCount, .key = 4});
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(data, std::vector<float>(kCount, static_cast<float>(step * 3)));
    }
  });
}

TEST(Reconnect, ParametersAreRightAlthoughConnectionsBreak) {
  const Buckets buckets = {{1, 300000}, {2, 5000}};
  const ParameterTraits sync{.mode = UpdateMode::kSync};
  RunWithBreaks({.workers = 2, .servers = 2, .update = sync}, 1000000,
                [&](Cluster& cluster, uint32_t worker) {
                  Weights weights;
                  Status status = Prepare(cluster.client(worker), worker, buckets,
                                          cluster.optimizer(), &weights);
                  if (status.ok()) status = Train(cluster, worker, buckets, 1, 6, &weights);
                  ASSERT_TRUE(status.ok()) << status.message();
                  EXPECT_EQ(weights, Weights(weights.size(), -9.0f));
                });
}

// Its messages were not read yet when it closed, and heartbeats were due.
TEST(Reconnect, APeerThatHasClosedIsHeardToTheEnd) {
  constexpr int kMessages = 20;
  const ConnectionSettings settings{.heartbeat = {.interval_ms = 10, .timeout_ms = 5000}};
  const KeyPair keys = *KeyPair::Make();
  ::zmq::context_t context, other;
  const Authenticator authenticator(context, {keys.public_key}, {});
  RouterLink router(context, 1, "", kMessages, settings);
  auto dealer =
      std::make_unique<DealerLink>(other, 0, router.Bind("tcp://127.0.0.1:*"), "", keys, settings);
  const auto deadline = kit::DeadlineIn(10000);
  for (int sent = 0; sent < kMessages && Clock::now() < deadline;) {
    Message message{.header = Encode({.request = 1})};
    sent += dealer->Send(message) ? 1 : 0;
  }
  dealer.reset();
  std::this_thread::sleep_for(
      std::chrono::milliseconds(500));  // for the linger time and heartbeats
  int received = 0;
  for (Message message; router.Receive(&message); ++received) {
  }
  EXPECT_EQ(received, kMessages);
}

// The connection of the last worker falls silent, as if one of its ends had stopped: much later
// than that is noticed (600 + 300 ms), and much earlier than the 30 s of a transfer, the first
// worker knows. Both at once, since they wait.
TEST(Heartbeats, NameWhoIsSilent) {
  RunWorkers(2, [](uint32_t others) {
    const uint32_t workers = others + 1;
    SCOPED_TRACE(workers == 1 ? "the server" : "another worker");
    Proxies proxies;
    Cluster cluster({.workers = workers,
                     .servers = 1,
                     .lost_after_ms = 300,
                     .heartbeat = {.interval_ms = 200, .timeout_ms = 600},
                     .route = RouteBy(&proxies, workers - 1)});
    ASSERT_TRUE(cluster.ok());
    float value = 1;
    const Transfer transfer{.send = &value, .recv = &value, .count = 1, .key = 1};
    RunWorkers(workers, [&](uint32_t worker) {
      const Transfer barrier{.kind = TransferKind::kBarrier};
      EXPECT_TRUE(cluster.Run(worker, barrier).ok());
    });
    proxies[0]->Freeze();
    const Clock::time_point begin = Clock::now();
    const Status status = cluster.Run(0, transfer);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), workers == 1 ? ServerId(0) : 1) << status.message();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
  });
}

}  // namespace
}  // namespace engine::zmq_ps
