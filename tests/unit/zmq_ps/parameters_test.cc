// Parameters that live at servers, in step: the weights are those of one process, to the bit.
#include <gmock/gmock.h>

#include <cstring>

#include "faulty_link.h"
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

TEST(Parameters, AreTheSameToTheBitWhenMessagesAreLostRepeatedAndReordered) {
  const TrainingSettings training{.workers = 3};
  const Weights expected = Expected(training);
  for (const uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FaultCounts counts;
    ClusterSettings settings{.workers = 3, .servers = 2, .resend_ms = 10, .update = kSync};
    settings.faults = [&](uint32_t endpoint) -> LinkWrapper {
      return [&counts, seed, endpoint, links = 0u](std::unique_ptr<Link> link) mutable {
        const uint32_t own_seed = seed * 1000 + endpoint * 10 + links++;
        return std::make_unique<FaultyLink>(std::move(link), own_seed, 0.1, &counts);
      };
    };
    Cluster cluster(settings);
    ASSERT_TRUE(cluster.ok());
    for (const Weights& weights : TrainAll(cluster, training)) {
      EXPECT_TRUE(SameBits(weights, expected));
    }
    const uint64_t repeated =
        cluster.server(0).traffic().repeated + cluster.server(1).traffic().repeated;
    EXPECT_GT(counts.dropped, 0u);
    EXPECT_GT(counts.reordered, 0u);
    EXPECT_GT(repeated, 0u) << "no push came twice: nothing was tested";
  }
}

class ParametersInStep : public ::testing::Test {
 protected:
  void Start(uint32_t workers, uint32_t servers = 2) {
    training_.workers = workers;
    cluster_ = std::make_unique<Cluster>(
        ClusterSettings{.workers = workers, .servers = servers, .update = kSync});
    ASSERT_TRUE(cluster_->ok());
    weights_.resize(workers);
    RunWorkers(workers, [&](uint32_t worker) {
      const Status status = Prepare(cluster_->client(worker), worker, training_,
                                    cluster_->optimizer(), &weights_[worker]);
      EXPECT_TRUE(status.ok()) << status.message();
    });
  }
  Status Step(uint32_t worker, int step) {
    return Train(*cluster_, worker, training_, step, step, &weights_[worker]);
  }

  TrainingSettings training_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<Weights> weights_;
};

TEST_F(ParametersInStep, WhatIsLoadedIsWhatWasStored) {
  Start(3);
  for (const Weights& weights : weights_) {
    EXPECT_TRUE(SameBits(weights, InitialWeights(training_)));
  }
}

TEST_F(ParametersInStep, StatesAreKeptAndGivenBack) {
  Start(2);
  const TestUnit unit = training_.units[1];
  RunWorkers(2, [&](uint32_t worker) { EXPECT_TRUE(Step(worker, 1).ok()); });
  std::vector<float> momentum(static_cast<size_t>(unit.count));
  ASSERT_TRUE(cluster_->client(1).Load(unit.key, 0, momentum.data(), 5000).ok());
  const std::vector<float> first = GradientOf(0, 1, unit), second = GradientOf(1, 1, unit);
  const ServedStep steps[] = {StepOf(training_, 0, 1), StepOf(training_, 1, 1)};
  const float scale = 1.0f / (steps[0].weight + steps[1].weight);
  for (size_t i = 0; i < momentum.size(); ++i) {
    ASSERT_EQ(momentum[i], (first[i] + second[i]) * scale) << i;
  }
}

TEST_F(ParametersInStep, APushIsDoneWithoutTheOthersAndAPullIsNot) {
  Start(2, 1);
  const TestUnit unit = training_.units[2];
  const std::vector<float> gradient = GradientOf(0, 1, unit);
  ASSERT_TRUE(cluster_->client(0).BeginStep(StepOf(training_, 0, 1)).ok());
  const Status pushed = cluster_->Run(
      0,
      {.kind = TransferKind::kPush, .send = gradient.data(), .count = unit.count, .key = unit.key});
  EXPECT_TRUE(pushed.ok()) << pushed.message();
  std::vector<float> values(gradient.size());
  const Status pulled = cluster_->Run(0, {.kind = TransferKind::kPull,
                                          .recv = values.data(),
                                          .count = unit.count,
                                          .key = unit.key,
                                          .timeout_ms = 300});
  EXPECT_EQ(pulled.code(), StatusCode::kTimeout) << pulled.message();
  EXPECT_EQ(pulled.rank(), 1) << pulled.message();
  EXPECT_THAT(pulled.message(), ::testing::HasSubstr("rank 1 has not pushed step 1"));
}

TEST_F(ParametersInStep, LastStepIsWhatEveryServerHas) {
  Start(2);
  uint64_t step = 7;
  ASSERT_TRUE(cluster_->client(1).LastStep(5000, &step).ok());
  EXPECT_EQ(step, 0u);
  RunWorkers(2, [&](uint32_t worker) {
    EXPECT_TRUE(Step(worker, 1).ok());
    EXPECT_TRUE(Step(worker, 2).ok());
  });
  ASSERT_TRUE(cluster_->client(1).LastStep(5000, &step).ok());
  EXPECT_EQ(step, 2u);
}

TEST_F(ParametersInStep, ALostRankIsNamedToThoseThatWaitForItsPush) {
  Start(3);
  RunWorkers(3, [&](uint32_t worker) {
    ASSERT_TRUE(Step(worker, 1).ok());
    if (worker == 2) return cluster_->Destroy(2);
    const Status status = Step(worker, 2);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), 2) << status.message();
  });
}

TEST_F(ParametersInStep, CollectivesGoOnBesideThem) {
  Start(2);
  RunWorkers(2, [&](uint32_t worker) {
    float statistics[3] = {1, 2, static_cast<float>(worker)};
    Work* work = nullptr;
    ASSERT_TRUE(
        cluster_->Submit(worker, {.send = statistics, .recv = statistics, .count = 3}, &work).ok());
    EXPECT_TRUE(Step(worker, 1).ok());
    EXPECT_TRUE(work->WaitHost(10000).ok());
    work->Release();
    EXPECT_EQ(statistics[2], 1.0f);
    EXPECT_TRUE(cluster_->Run(worker, {.kind = TransferKind::kBarrier}).ok());
  });
  training_.steps = 1;
  EXPECT_TRUE(SameBits(weights_[0], Expected(training_)));
}

TEST(ParametersRefused, WhatDiffersFromTheFirstRankIsNamed) {
  TrainingSettings one{.workers = 2, .units = {{5, 1000}}}, other = one;
  other.units[0].count = 1001;
  Cluster cluster({.workers = 2, .servers = 1, .update = kSync});
  ASSERT_TRUE(cluster.ok());
  ASSERT_TRUE(Register(cluster.client(0), one, cluster.optimizer()).ok());
  const Status status = Register(cluster.client(1), other, cluster.optimizer());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_EQ(status.rank(), 1) << status.message();
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

TEST(ParametersRefused, NothingGoesBeforeRegister) {
  Cluster cluster({.workers = 1, .servers = 1, .update = kSync});
  ASSERT_TRUE(cluster.ok());
  uint64_t step = 0;
  float value = 0;
  EXPECT_EQ(cluster.client(0).LastStep(1000, &step).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster.client(0).BeginStep({.step = 1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster.client(0).Store(5, -1, &value, 1000).code(), StatusCode::kInvalidArgument);
}

TEST(ParametersRefused, ServersThatOnlyAddUpSaySo) {
  Cluster cluster({.workers = 1, .servers = 1});
  ASSERT_TRUE(cluster.ok());
  auto pool = std::make_shared<WorkPool>();
  TestOptimizer optimizer;
  ServedParameters client(kSync, 1 << 16, cluster.worker(0), pool, {});
  const Status status = Register(client, {.workers = 1}, optimizer);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_THAT(status.message(), ::testing::HasSubstr("option update"));
}

TEST(ParametersRefused, TransfersThatFitNoUnitAreRefusedAtOnce) {
  const TrainingSettings training{.workers = 1, .units = {{5, 1000}}};
  Cluster cluster({.workers = 1, .servers = 1, .update = kSync});
  ASSERT_TRUE(cluster.ok());
  ASSERT_TRUE(Register(cluster.client(0), training, cluster.optimizer()).ok());
  std::vector<float> data(2000);
  const int32_t row = 0;
  Work* work = nullptr;
  const auto refused = [&](Transfer transfer) {
    transfer.kind = TransferKind::kPush;
    transfer.send = data.data();
    return cluster.Submit(0, transfer, &work).code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({.count = 1000, .key = 5})) << "before the first step";
  ASSERT_TRUE(cluster.client(0).BeginStep({.step = 4, .learning_rate = 1, .weight = 1}).ok());
  EXPECT_TRUE(refused({.count = 1000, .key = 6}));
  EXPECT_TRUE(refused({.count = 999, .key = 5}));
  EXPECT_TRUE(refused({.count = 1000, .key = 5, .rows = &row, .row_count = 1})) << "no rows";
  EXPECT_TRUE(refused({.dtype = DType::kInt32, .count = 1000, .key = 5}));
  EXPECT_EQ(cluster.client(0).BeginStep({.step = 6}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace engine::zmq_ps
