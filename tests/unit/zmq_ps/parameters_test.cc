// Parameters that live at servers, in step: the weights are those of one process, to the bit.
#include <gmock/gmock.h>

#include <cstring>

#include "training.h"

namespace engine::zmq_ps {
namespace {

constexpr ParameterTraits kSync{.mode = UpdateMode::kSync};

bool SameBits(const Weights& a, const Weights& b) {
  return !a.empty() && a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Parameters, AreThoseOfOneProcessToTheBit) {
  for (const uint32_t workers : {1u, 2u, 3u}) {
    for (const uint32_t servers : {1u, 2u}) {
      for (const bool encrypt : {false, true}) {
        SCOPED_TRACE(std::to_string(workers) + " workers, " + std::to_string(servers) +
                     (encrypt ? " servers, encrypted" : " servers"));
        const TrainingSettings training{.workers = workers};
        Cluster cluster(
            {.workers = workers, .servers = servers, .encrypt = encrypt, .update = kSync});
        ASSERT_TRUE(cluster.ok());
        const Weights expected = Expected(training);
        for (const Weights& weights : TrainAll(cluster, training)) {
          EXPECT_TRUE(SameBits(weights, expected));
        }
      }
    }
  }
}

TEST(ParametersRefused, AUnitThatOnlyOneRankHasIsFound) {
  const TrainingSettings one{.workers = 2, .units = {{5, 1000}}};
  const std::vector<TestUnit> others[] = {{{6, 1000}}, {{5, 1000}, {6, 10}}, {}};
  for (const std::vector<TestUnit>& units : others) {
    Cluster cluster({.workers = 2, .servers = 2, .update = kSync});
    ASSERT_TRUE(cluster.ok());
    ASSERT_TRUE(Register(cluster.client(0), one, cluster.optimizer()).ok());
    const Status status =
        Register(cluster.client(1), {.workers = 2, .units = units}, cluster.optimizer());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_EQ(status.rank(), 1) << status.message();
  }
}

TEST(ParametersRefused, ServersThatOnlyAddUpSaySo) {
  Cluster cluster({.workers = 1, .servers = 1});
  ASSERT_TRUE(cluster.ok());
  Works works;
  TestOptimizer optimizer;
  ServedParameters client(kSync, 1 << 16, cluster.worker(0), works, {});
  const Status status = Register(client, {.workers = 1}, optimizer);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_THAT(status.message(), ::testing::HasSubstr("option update"));
}

}  // namespace
}  // namespace engine::zmq_ps
