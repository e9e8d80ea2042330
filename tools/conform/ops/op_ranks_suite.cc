// The parts of a batch on several ranks against the whole batch on one.
#include <functional>
#include <vector>

#include "tools/conform/ops/ops_suite.h"
#include "tools/conform/ops/replica_group.h"

namespace engine::conform {
namespace {

constexpr const char* kHeader = "engine/op.h";
constexpr int32_t kRanks = 3;

class OpRanks : public Ops {
 protected:
  // Tensor i of the parts. Batched: one behind the other. Else their sum.
  static std::vector<float> Together(const std::vector<RunResult>& parts,
                                     std::vector<std::vector<float>> RunResult::*member, size_t i,
                                     bool batched) {
    std::vector<float> all;
    for (const RunResult& part : parts) {
      const std::vector<float>& own = (part.*member)[i];
      const size_t begin = batched ? all.size() : 0;
      all.resize(begin + own.size());
      for (size_t k = 0; k < own.size(); ++k) all[begin + k] += own[k];
    }
    return all;
  }

  static bool UsesReplicas(const Trial& trial) { return trial.op.signature.uses_replicas != 0; }
  bool IsRandom(Trial& trial) const {
    return Run(trial, {.random = {.seed = 18}}).outputs != Run(trial).outputs;
  }

  // For those that have samples, and of which `which` is true.
  void ForEachBatch(const std::function<bool(Trial& trial)>& which,
                    const std::function<void(Trial& trial)>& body) {
    bool any = false;
    ForEachCase([&](Trial& trial) {
      if (trial.problem.samples == 0 || !which(trial)) return;
      any = true;
      body(trial);
    });
    if (!any && !HasFailure()) GTEST_SKIP() << "it is no such op";
  }

  // Whether several ranks get what one gets; for replicas, also where one has no samples.
  void Compare(Trial& trial, bool training = true) {
    const RunResult whole = Run(trial, {.training = training});
    const int64_t all = trial.problem.samples, cut = all * 2 / 3;
    std::vector<std::vector<int64_t>> gathers, all_cuts = {{0, 1, cut, all}};
    const bool gathers_now = training && UsesReplicas(trial);
    if (UsesReplicas(trial)) all_cuts.push_back({0, cut, cut, all});
    for (const std::vector<int64_t>& cuts : all_cuts) {
      ReplicaGroup group(kRanks);
      const std::vector<RunResult> parts = RunRanks(
          trial.sample, trial.problem, cuts, {.training = training}, gathers_now ? &group : nullptr,
          [] { return LoadUnderTest({.local_world_size = kRanks}); });
      if (HasFailure()) return;
      RunResult together;
      for (size_t i = 0; i < whole.outputs.size(); ++i) {
        const bool batched = trial.problem.output_gradients[i].spec.batched != 0;
        together.outputs.push_back(Together(parts, &RunResult::outputs, i, batched));
      }
      for (size_t i = 0; i < whole.gradients.size(); ++i) {
        const bool batched = trial.problem.inputs[i].spec.batched != 0;
        together.gradients.push_back(Together(parts, &RunResult::gradients, i, batched));
      }
      ExpectSame(together, whole, trial);
      for (const RunResult& part : parts) {
        for (size_t i = 0; i < whole.parameters.size(); ++i) {
          ExpectNear(part.parameters[i], whole.parameters[i], DType::kFloat32, "parameter");
        }
      }
      for (int32_t rank = 0; rank < kRanks; ++rank) gathers.push_back(group.counts(rank));
    }
    EXPECT_EQ(!gathers[0].empty(), gathers_now);
    for (const std::vector<int64_t>& counts : gathers) {
      EXPECT_EQ(counts, gathers[0]) << "ranks or steps gather differently";
    }
  }
};

TEST_P(OpRanks, ReplicasMakeOneBatch) {
  CONTRACT(MUST, kHeader,
           "An op that uses replicas gives what one rank gives that has the samples of all; in "
           "every step and on every rank, with samples or without, it gathers as often and the "
           "same counts.");
  ForEachBatch(UsesReplicas, [&](Trial& trial) { Compare(trial); });
}

TEST_P(OpRanks, EvaluatesAlone) {
  CONTRACT(MUST, kHeader, "In evaluation there are no replicas to gather from.");
  ForEachBatch(UsesReplicas, [&](Trial& trial) { Compare(trial, false); });
}

TEST_P(OpRanks, PassesOnWhatAGatherSays) {
  CONTRACT(MUST, kHeader, "The error of a gather is that of the call.");
  ForEachBatch(UsesReplicas, [&](Trial& trial) {
    ReplicaGroup group(2, 50);
    const RunResult result =
        RunOp(ops_.device(), trial.op, trial.problem, {.replicas = group.rank(0, ops_.device())});
    EXPECT_EQ(result.status.code(), StatusCode::kTimeout);
    EXPECT_EQ(result.status.rank(), 1);
  });
}

TEST_P(OpRanks, RandomNumbersAreThoseOfTheBatch) {
  CONTRACT(MUST, kHeader,
           "Random numbers are a function of seed, step, node, first_sample and the position in a "
           "sample, so that they are the same for any number of ranks.");
  ForEachBatch([&](Trial& trial) { return IsRandom(trial); },
               [&](Trial& trial) { Compare(trial); });
}

TEST_P(OpRanks, LossesAddUp) {
  CONTRACT(
      MUST, kHeader,
      "Output 0 of a loss is the sum over targets of the loss, the number of targets and the "
      "number of correct predictions: those of parts of a batch add up to those of the batch.");
  const auto is_loss = [](Trial& trial) { return trial.op.signature.is_loss != 0; };
  ForEachBatch(is_loss, [&](Trial& trial) {
    const std::vector<float> numbers = Run(trial).outputs[0];
    EXPECT_GE(numbers[1], numbers[2]) << "more correct predictions than targets";
    Compare(trial);
  });
}

TEST_P(OpRanks, SamplesDoNotMix) {
  CONTRACT(SHOULD, kHeader,
           "What becomes of a sample should not depend on others of its call, unless the op uses "
           "replicas: else several ranks train to something else than one.");
  bool any = false;
  ForEachCase([&](Trial& trial) { any |= UsesReplicas(trial); });
  if (any) GTEST_SKIP() << "it uses replicas, or an attribute says that it shall not";
  ForEachBatch(  // losses and what is random are judged as such
      [&](Trial& trial) { return trial.op.signature.is_loss == 0 && !IsRandom(trial); },
      [&](Trial& trial) { Compare(trial); });
}

INSTANTIATE_TEST_SUITE_P(, OpRanks, testing::ValuesIn(OpsUnderTest()),
                         [](const auto& op) { return op.param; });

}  // namespace
}  // namespace engine::conform
