// What one call of an op may do to memory, and what it must not depend on.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tools/conform/ops/ops_suite.h"

namespace engine::conform {
namespace {

constexpr const char* kHeader = "engine/op.h";

class OpCalls : public Ops {
 protected:
  struct Watched {
    std::set<std::string> overruns, changes;
  };
  // What every kind of call that the core makes does to memory, at full and smaller batches. Done
  // once per sample.
  const Watched& Watch(Trial& trial) {
    static std::map<std::string, Watched> all;
    const auto [found, is_new] = all.try_emplace(trial.sample.Text());
    if (!is_new) return found->second;
    std::set<int64_t> sizes = {trial.problem.samples};
    if (trial.problem.samples > 0) sizes.insert({1, trial.problem.samples - 1});
    for (const int64_t samples : sizes) {
      const Problem problem = trial.With(samples);
      for (const RunOptions& options : {RunOptions{},
                                        {.training = false},
                                        {.accumulate = trial.op.signature.accumulates},
                                        {.in_place = true, .share_gradient = true},
                                        {.gradient_in_place = true}}) {
        const RunResult result = RunOp(ops_.device(), trial.op, problem, options);
        found->second.overruns.insert(result.overruns.begin(), result.overruns.end());
        found->second.changes.insert(result.changes.begin(), result.changes.end());
      }
    }
    return found->second;
  }

  static std::vector<float> PlusBefore(std::vector<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] += Before(i);
    return values;
  }

  // With the options a call gives what it gives without.
  void ExpectNothingElse(const RunOptions& options) {
    ForEachCase([&](Trial& trial) { ExpectSame(Run(trial, options), Run(trial), trial); });
  }
};

TEST_P(OpCalls, AcceptsInputs) {
  CONTRACT(MUST, kHeader,
           "Infer accepts inputs that fit; for others it gives kConfig and a sentence.");
  EXPECT_EQ(search().wrong, "");
  EXPECT_FALSE(search().found.empty())
      << "none of " << search().tried
      << " combinations of 0 to 4 inputs with 1 to 4 dimensions and small attributes was accepted ("
      << search().refusal << "); name some: --inputs '" << GetParam()
      << "(ATTRIBUTE=2)=float32[8*,16],int32[8*]', where the star marks the dimension of samples";
}

TEST_P(OpCalls, SaysWhatItDoes) {
  CONTRACT(
      MUST, kHeader,
      "What Infer says fits together: counts are within their limits, masks name inputs, every "
      "trained parameter has a name, a shape and a gradient, a loss is float32[3].");
  for (const OpSample& sample : search().found) {
    SCOPED_TRACE(sample.Text());
    const MadeOp op = Must(ops_.Make(sample));
    const OpSignature& says = op.signature;
    ASSERT_GE(says.output_count, 1);
    ASSERT_LE(says.output_count, kMaxOpOutputs);
    ASSERT_GE(says.parameter_count, 0);
    ASSERT_LE(op.inputs(), static_cast<size_t>(kMaxOpInputs));
    EXPECT_GE(says.saved_bytes, 0);
    EXPECT_GE(says.workspace_bytes, 0);
    const uint32_t all = (1u << op.inputs()) - 1, gradients = says.differentiable_inputs;
    EXPECT_EQ(gradients & ~all, 0u) << "differentiable_inputs names inputs that there are not";
    EXPECT_EQ(
        (says.accumulates | says.passes_gradient | says.equal_gradients | says.gradient_in_place) &
            ~gradients,
        0u)
        << "accumulates, passes_gradient, equal_gradients or gradient_in_place names an input that "
           "is not differentiable";
    EXPECT_LT(std::max(says.output_is_view_of, says.in_place_of),
              static_cast<int32_t>(sample.inputs.size()));
    for (int32_t i = 0; i < says.output_count; ++i) {
      const TensorSpec& output = says.outputs[i];
      const bool fits = output.batched == 0 || (sample.samples() > 0 && output.shape.ndim > 0 &&
                                                output.shape[0] % sample.samples() == 0);
      EXPECT_TRUE(fits) << "dims[0] of output " << i << " is no multiple of the samples";
    }
    if (says.is_loss != 0) {
      EXPECT_TRUE(says.outputs[0].shape == Shape{3} && says.outputs[0].batched == 0 &&
                  says.outputs[0].dtype == DType::kFloat32)
          << "output 0 of a loss is not float32[3]";
    }
    std::set<std::string_view> names = {""};
    for (int32_t i = 0; i < says.parameter_count; ++i) {
      const ParameterSpec& parameter = says.parameters[i];
      EXPECT_TRUE(names.insert(parameter.name.view()).second) << "a name twice, or none";
      EXPECT_GT(parameter.shape.Count(), 0) << parameter.name.view();
      EXPECT_EQ(parameter.trained != 0, op.differentiable(sample.inputs.size() + size_t(i)))
          << parameter.name.view() << ": trained, and no gradient, or the reverse";
      EXPECT_LE(parameter.decay, parameter.trained) << parameter.name.view();
    }
  }
}

TEST_P(OpCalls, StaysInItsMemory) {
  CONTRACT(MUST, kHeader, "An op writes nothing beside the memory of the call.");
  ForEachCase([&](Trial& trial) { EXPECT_THAT(Watch(trial).overruns, testing::IsEmpty()); });
}

TEST_P(OpCalls, LeavesAloneWhatIsNotItsOwn) {
  CONTRACT(MUST, kHeader,
           "Forward writes outputs, saved bytes, workspace and, while it trains, buffers; Backward "
           "writes gradients of inputs and workspace. All else stays as it is.");
  ForEachCase([&](Trial& trial) { EXPECT_THAT(Watch(trial).changes, testing::IsEmpty()); });
}

TEST_P(OpCalls, WritesAllAndReadsNothingUnwritten) {
  CONTRACT(MUST, kHeader,
           "Forward writes every element of the outputs, Backward of the gradients; what they read "
           "of memory that nobody has written, nothing depends on.");
  ExpectNothingElse({.poison = std::byte{0x3e}});
}

TEST_P(OpCalls, BackwardReadsWhatItSays) {
  CONTRACT(MUST, kHeader,
           "Backward reads no input and no output but those of backward_reads_inputs and "
           "backward_reads_outputs: their memory may be another value's by then.");
  ExpectNothingElse({.hide_undeclared = true});
}

TEST_P(OpCalls, AddsToGradients) {
  CONTRACT(MUST, kHeader,
           "Where OpCall::accumulate names an input, Backward adds its gradient to what is there, "
           "for any of the inputs of OpSignature::accumulates.");
  ForEachCase([&](Trial& trial) {
    const uint32_t accumulates = trial.op.signature.accumulates;
    std::set<uint32_t> masks = {accumulates};
    for (size_t i = 0; i < trial.op.inputs(); ++i) masks.insert(accumulates & 1u << i);
    for (const uint32_t mask : masks) {
      RunResult want = Run(trial);
      for (size_t i = 0; i < trial.op.inputs(); ++i) {
        if ((mask >> i & 1) != 0) want.gradients[i] = PlusBefore(want.gradients[i]);
      }
      ExpectSame(Run(trial, {.accumulate = mask}), want, trial);
    }
  });
}

TEST_P(OpCalls, SharesMemoryWhereItSaysSo) {
  CONTRACT(MUST, kHeader,
           "in_place_of, gradient_in_place, passes_gradient and equal_gradients allow the core to "
           "share memory; the results are the same with it and without.");
  ExpectNothingElse({.in_place = true});
  ExpectNothingElse({.share_gradient = true});
  ExpectNothingElse({.gradient_in_place = true});
  ForEachCase([&](Trial& trial) {
    ExpectSame(Run(trial, {.in_place = true, .training = false}), Run(trial, {.training = false}),
               trial);
  });
}

TEST_P(OpCalls, TakesNoSamples) {
  CONTRACT(MUST, kHeader,
           "The number of samples can be 0: gradients of parameters become, or stay, the sum over "
           "nothing, and a loss is 0.");
  ForEachCase([&](Trial& trial) {
    MadeOp& op = trial.op;
    if (trial.problem.samples == 0) return;
    trial.problem = trial.With(0);
    const RunResult written = Run(trial), evaluated = Run(trial, {.training = false});
    const RunResult added = Run(trial, {.accumulate = op.signature.accumulates});
    if (op.signature.is_loss != 0) {
      EXPECT_EQ(written.outputs[0], (std::vector<float>{0, 0, 0}));
      EXPECT_EQ(evaluated.outputs[0], (std::vector<float>{0, 0, 0}));
    }
    for (size_t i = 0; i < op.inputs(); ++i) {
      std::vector<float> none(written.gradients[i].size());
      EXPECT_EQ(written.gradients[i], none) << "gradient of input " << i;
      if ((op.signature.accumulates >> i & 1) != 0) none = PlusBefore(none);
      EXPECT_EQ(added.gradients[i], none) << "gradient of input " << i << ", added";
    }
  });
}

TEST_P(OpCalls, TakesMissingGradients) {
  CONTRACT(MUST, kHeader,
           "The data of an output's gradient is null where none arrives, which counts as zeros; "
           "one arrives at least.");
  ForEachCase([&](Trial& trial) {
    const OpSignature& says = trial.op.signature;
    const int32_t outputs = says.is_loss != 0 ? 1 : says.output_count;
    for (int32_t k = 0; outputs > 1 && k < outputs; ++k) {
      Problem zeros = trial.problem;
      std::ranges::fill(zeros.output_gradients[static_cast<size_t>(k)].values, 0.0);
      for (const uint32_t mask : {0u, says.accumulates}) {
        ExpectSame(Run(trial, {.accumulate = mask, .missing = 1u << k}),
                   Run(trial.op, zeros, {.accumulate = mask}), trial);
      }
    }
  });
}

TEST_P(OpCalls, TakesUnwantedGradients) {
  CONTRACT(MUST, kHeader,
           "The data of an input's gradient is null where none is wanted; the others are as "
           "always.");
  ForEachCase([&](Trial& trial) {
    const RunResult all = Run(trial);
    for (size_t one = 0; one < trial.op.inputs(); ++one) {
      for (const uint32_t wanted : {1u << one, ~(1u << one)}) {
        if ((trial.op.signature.differentiable_inputs & wanted) == 0) continue;
        RunResult want = all;
        for (size_t i = 0; i < trial.op.inputs(); ++i) {
          if ((wanted >> i & 1) == 0) want.gradients[i].clear();
        }
        ExpectSame(Run(trial, {.wanted = wanted}), want, trial);
      }
    }
  });
}

TEST_P(OpCalls, RepeatsItself) {
  CONTRACT(MUST, kHeader,
           "The same call gives the same bits, whatever came before, from any instance: ops are "
           "deterministic for a fixed number of threads.");
  const LoadedOps others = LoadUnderTest();
  ForEachCase([&](Trial& trial) {
    const RunResult first = Run(trial);
    Run(trial.op, trial.With(trial.problem.samples, UnderTest().seed + 1), {.random = {.step = 4}});
    ExpectSameBits(Run(trial), first);
    for (const LoadedOps* library : {&ops_, &others}) {
      MadeOp again = Must(library->Make(trial.sample));
      ExpectSameBits(Run(again, trial.problem), first);
    }
  });
}

TEST_P(OpCalls, KeepsInstancesApart) {
  CONTRACT(MUST, kHeader,
           "Between Forward and Backward of one instance others run, of the same op and of other "
           "ranks, which may be threads of one process.");
  ForEachCase([&](Trial& trial) {
    MadeOp second = Must(ops_.Make(trial.sample));
    const Problem &one = trial.problem, two = trial.With(one.samples, UnderTest().seed + 1);
    const RunResult first = Run(trial), other = Run(second, two);
    OpRun a(ops_.device(), trial.op, one), b(ops_.device(), second, two);
    a.Forward();
    b.Forward();
    a.Backward();
    b.Backward();
    ExpectSame(a.result(), first, trial);
    ExpectSame(b.result(), other, trial);
    const auto rank = [&](const Problem& problem, const RunResult& want) {
      const LoadedOps ops = LoadUnderTest({.local_world_size = 1});
      MadeOp made = Must(ops.Make(trial.sample));
      for (int i = 0; i < 3; ++i) ExpectSame(RunOp(ops.device(), made, problem), want, trial);
    };
    std::thread thread(rank, one, first);
    rank(two, other);
    thread.join();
  });
}

TEST_P(OpCalls, ChangesBuffersInTrainingAlone) {
  CONTRACT(MUST, kHeader,
           "A parameter that is not trained is changed by Forward, and only while "
           "OpCall::training is set.");
  ForEachCase([&](Trial& trial) {
    const RunResult trained = Run(trial), evaluated = Run(trial, {.training = false});
    // Parameters of other ops come before those of this one.
    const auto count = static_cast<size_t>(trial.op.signature.parameter_count);
    for (size_t i = 0; i < count; ++i) {
      const ParameterSpec& parameter = trial.op.signature.parameters[i];
      const Values& given = trial.problem.inputs[trial.op.data_inputs + i].values;
      const std::vector<float> before(given.begin(), given.end());
      const auto after = [&](const RunResult& result) {
        return *(result.parameters.end() - count + i);
      };
      EXPECT_EQ(after(trained) != before, parameter.trained == 0) << parameter.name.view();
      EXPECT_TRUE(after(evaluated) == before) << parameter.name.view() << ", in evaluation";
    }
  });
}

TEST_P(OpCalls, AllocatesNothing) {
  CONTRACT(SHOULD, kHeader, "After the first call, Forward and Backward allocate no memory.");
  if (IsNoAccelerator().empty()) GTEST_SKIP() << "the library of its device may allocate";
  ForEachCase([&](Trial& trial) {
    Run(trial);
    EXPECT_EQ(Run(trial).allocations, 0u);
  });
}

INSTANTIATE_TEST_SUITE_P(, OpCalls, testing::ValuesIn(OpsUnderTest()),
                         [](const auto& op) { return op.param; });

TEST(OpLibrary, CanAccumulate) {
  CONTRACT(MUST, kHeader,
           "A library that brings a device has the op \"accumulate\", with which the core adds "
           "gradients in place.");
  if (UnderTest().plugin.file().device == "any") GTEST_SKIP() << "it brings no device";
  EXPECT_THAT(OpsUnderTest(), testing::Contains("accumulate"));
}

}  // namespace
}  // namespace engine::conform
