// Parameters that live at servers, in step: the weights are those of one process, to the bit.
#include <gmock/gmock.h>

#include "training.h"

namespace engine::zmq_ps {
namespace {

constexpr ParameterTraits kSync{.mode = UpdateMode::kSync};

// The bits of the sums are the business of the conformance suite; keys and several servers are of
// this one.
TEST(Parameters, AreKeptByAnyNumberOfServers) {
  const Buckets buckets = {{11, 1}, {12, 3000}, {13, 70001}};
  for (const uint32_t workers : {1u, 3u}) {
    for (const bool encrypt : {false, true}) {
      SCOPED_TRACE(std::to_string(workers) + (encrypt ? " workers, encrypted" : " workers"));
      Cluster cluster({.workers = workers, .servers = 3, .encrypt = encrypt, .update = kSync});
      ASSERT_TRUE(cluster.ok());
      RunWorkers(workers, [&](uint32_t worker) {
        Weights weights;
        Status status =
            Prepare(cluster.client(worker), worker, buckets, cluster.optimizer(), &weights);
        if (status.ok()) status = Train(cluster, worker, buckets, 1, 4, &weights);
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(weights, Weights(weights.size(), -2.0f * static_cast<float>(workers + 1)));
      });
    }
  }
}

TEST(ParametersRefused, ServersThatOnlyAddUpSaySo) {
  Cluster cluster({.workers = 1, .servers = 1});
  ASSERT_TRUE(cluster.ok());
  Works works;
  TestOptimizer optimizer;
  ServedParameters client(kSync, 1 << 16, cluster.worker(0), works, {});
  const Status status = Register(client, {{5, 1000}}, optimizer);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_THAT(status.message(), ::testing::HasSubstr("option update"));
}

}  // namespace
}  // namespace engine::zmq_ps
