// The parts of a batch on several ranks against the whole batch on one.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tools/conform/ops/ops_suite.h"
#include "tools/conform/ops/replica_group.h"

namespace engine::conform {
namespace {

constexpr const char* kHeader = "engine/op.h";
constexpr int32_t kRanks = 3;

class OpRanks : public Ops {
 protected:
  struct Parts {
    std::vector<RunResult> results;
    std::vector<std::vector<int64_t>> gathers;  // of each rank, their counts
  };

  // Ranks that are threads, each with a library of its own and the samples [cuts[r], cuts[r + 1]).
  static Parts RunParts(const OpCase& op_case, const Problem& problem,
                        const std::vector<int64_t>& cuts) {
    Parts parts{std::vector<RunResult>(kRanks), {}};
    ReplicaGroup group(kRanks);
    std::vector<std::jthread> ranks;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        const LoadedOps ops = LoadUnderTest({.local_world_size = kRanks});
        MadeOp op = Must(ops.Make(op_case.sample));
        const auto at = static_cast<size_t>(rank);
        RunOptions options;
        options.random.first_sample += static_cast<uint64_t>(cuts[at]);
        if (op.signature.uses_replicas != 0) options.replicas = group.rank(rank, ops.device());
        parts.results[at] =
            RunOp(ops.device(), op, PartOf(problem, cuts[at], cuts[at + 1]), options);
        EXPECT_TRUE(parts.results[at].status.ok()) << parts.results[at].status.message();
      });
    }
    ranks.clear();  // waits
    for (int32_t rank = 0; rank < kRanks; ++rank) parts.gathers.push_back(group.counts(rank));
    return parts;
  }

  // Batched: one behind the other. Else their sum.
  template <typename Member>
  static std::vector<float> Together(const Parts& parts, bool batched, const Member& member) {
    std::vector<float> all;
    for (const RunResult& part : parts.results) {
      const std::vector<float>& own = member(part);
      if (batched) {
        all.insert(all.end(), own.begin(), own.end());
      } else {
        all.resize(own.size());
        for (size_t i = 0; i < own.size(); ++i) all[i] += own[i];
      }
    }
    return all;
  }

  void ExpectWhole(const Parts& parts, const Problem& problem, const MadeOp& op,
                   const RunResult& whole) {
    for (size_t i = 0; i < whole.outputs.size(); ++i) {
      const TensorSpec& spec = problem.output_gradients[i].spec;
      ExpectNear(
          Together(
              parts,
              spec.batched != 0, [i](const RunResult& part) -> auto& { return part.outputs[i]; }),
          whole.outputs[i], spec.dtype, "output " + std::to_string(i));
    }
    for (size_t i = 0; i < op.inputs(); ++i) {
      const TensorSpec& spec = problem.inputs[i].spec;
      ExpectNear(
          Together(
              parts,
              spec.batched != 0, [i](const RunResult& part) -> auto& { return part.gradients[i]; }),
          whole.gradients[i], spec.dtype, "gradient of input " + std::to_string(i));
    }
    for (const RunResult& part : parts.results) {
      for (size_t i = 0; i < whole.parameters.size(); ++i) {
        ExpectNear(part.parameters[i], whole.parameters[i], DType::kFloat32, "parameter");
      }
    }
  }

  bool IsRandom(MadeOp& op, const Problem& problem) const {
    const RunResult other = Run(op, problem, {.random = {.seed = 18}});
    return other.outputs != Run(op, problem).outputs;
  }

  // Calls body(case, op, problem) for those cases that have samples.
  template <typename Body>
  void ForEachBatch(const Body& body) {
    bool any = false;
    ForEachCase([&](const OpCase& op_case, MadeOp& op) {
      if (op_case.sample.samples() == 0) return;
      any |= body(op_case, op, NewProblem(op_case, op));
    });
    if (!any && !HasFailure()) GTEST_SKIP() << "it is no such op";
  }

  // Whether several ranks get what one gets; for replicas, also where one has no samples.
  void Compare(const OpCase& op_case, MadeOp& op, const Problem& problem) {
    const RunResult whole = Run(op, problem);
    const int64_t all = problem.samples, cut = all * 2 / 3;
    std::vector<std::vector<int64_t>> gathers, all_cuts = {{0, 1, cut, all}};
    if (op.signature.uses_replicas != 0) all_cuts.push_back({0, cut, cut, all});
    for (const std::vector<int64_t>& cuts : all_cuts) {
      const Parts parts = RunParts(op_case, problem, cuts);
      if (HasFailure()) return;
      ExpectWhole(parts, problem, op, whole);
      gathers.insert(gathers.end(), parts.gathers.begin(), parts.gathers.end());
    }
    EXPECT_EQ(!gathers[0].empty(), op.signature.uses_replicas != 0);
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
  ForEachBatch([&](const OpCase& op_case, MadeOp& op, const Problem& problem) {
    if (op.signature.uses_replicas == 0) return false;
    Compare(op_case, op, problem);
    return true;
  });
}

TEST_P(OpRanks, EvaluatesAlone) {
  CONTRACT(MUST, kHeader, "In evaluation there are no replicas to gather from.");
  ForEachBatch([&](const OpCase&, MadeOp& op, const Problem& problem) {
    if (op.signature.uses_replicas == 0) return false;
    ReplicaGroup group(2, 50);
    Run(op, problem, {.training = false, .replicas = group.rank(0, ops_.device())});
    EXPECT_EQ(group.counts(0).size(), 0u);
    return true;
  });
}

TEST_P(OpRanks, PassesOnWhatAGatherSays) {
  CONTRACT(MUST, kHeader, "The error of a gather is that of the call.");
  ForEachBatch([&](const OpCase&, MadeOp& op, const Problem& problem) {
    if (op.signature.uses_replicas == 0) return false;
    ReplicaGroup group(2, 50);
    const RunResult result =
        RunOp(ops_.device(), op, problem, {.replicas = group.rank(0, ops_.device())});
    EXPECT_EQ(result.status.code(), StatusCode::kTimeout);
    EXPECT_EQ(result.status.rank(), 1);
    return true;
  });
}

TEST_P(OpRanks, RandomNumbersAreThoseOfTheBatch) {
  CONTRACT(MUST, kHeader,
           "Random numbers are a function of seed, step, node, first_sample and the position in a "
           "sample, so that they are the same for any number of ranks.");
  ForEachBatch([&](const OpCase& op_case, MadeOp& op, const Problem& problem) {
    if (!IsRandom(op, problem)) return false;
    Compare(op_case, op, problem);
    return true;
  });
}

TEST_P(OpRanks, LossesAddUp) {
  CONTRACT(
      MUST, kHeader,
      "Output 0 of a loss is the sum over targets of the loss, the number of targets and the "
      "number of correct predictions: those of parts of a batch add up to those of the batch.");
  ForEachBatch([&](const OpCase& op_case, MadeOp& op, const Problem& problem) {
    if (op.signature.is_loss == 0) return false;
    const std::vector<float> numbers = Run(op, problem).outputs[0];
    EXPECT_GE(numbers[1], numbers[2]) << "more correct predictions than targets";
    Compare(op_case, op, problem);
    return true;
  });
}

TEST_P(OpRanks, SamplesDoNotMix) {
  CONTRACT(SHOULD, kHeader,
           "What becomes of a sample does not depend on others of its call, unless the op uses "
           "replicas: else several ranks train to something else than one.");
  const auto uses_replicas = [&](const OpCase& op_case) {
    return Must(ops_.Make(op_case.sample)).signature.uses_replicas != 0;
  };
  if (std::ranges::any_of(cases(), uses_replicas)) {
    GTEST_SKIP() << "it uses replicas, or an attribute says that it shall not";
  }
  ForEachBatch([&](const OpCase& op_case, MadeOp& op, const Problem& problem) {
    if (op.signature.is_loss != 0 || IsRandom(op, problem)) return false;  // judged as such
    Compare(op_case, op, problem);
    return true;
  });
}

INSTANTIATE_TEST_SUITE_P(, OpRanks, testing::ValuesIn(OpsUnderTest()),
                         [](const auto& op) { return op.param; });

}  // namespace
}  // namespace engine::conform
