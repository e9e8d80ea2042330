// What one call of an op may do to memory, and what it must not depend on.
#include <algorithm>
#include <functional>
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
  // Every kind of call that the core makes, at full and smaller batches.
  void ForEachRun(const std::function<void(const RunResult&)>& body) {
    ForEachCase([&](const OpCase& op_case, MadeOp& op) {
      std::set<int64_t> sizes = {op_case.sample.samples()};
      if (op_case.sample.samples() > 0) sizes.insert({1, op_case.sample.samples() - 1});
      for (const int64_t samples : sizes) {
        SCOPED_TRACE(std::to_string(samples) + " samples");
        const Problem problem = NewProblem(op_case, op, samples);
        const RunOptions kinds[] = {{},
                                    {.training = false},
                                    {.accumulate = op.signature.accumulates},
                                    {.in_place = true, .share_gradient = true},
                                    {.gradient_in_place = true}};
        for (const RunOptions& options : kinds) body(RunOp(ops_.device(), op, problem, options));
      }
    });
  }

  static std::vector<float> PlusBefore(std::vector<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] += Before(i);
    return values;
  }
  static DType TypeOfGradient(const OpCase& op_case, const MadeOp& op, size_t input) {
    return input < op.data_inputs ? op_case.sample.inputs[input].dtype : DType::kFloat32;
  }
  // Outputs and gradients; that the bits are the same is another matter.
  static void ExpectSame(const RunResult& got, const RunResult& want, const OpCase& op_case,
                         const MadeOp& op) {
    ASSERT_TRUE(got.status.ok()) << got.status.message();
    for (size_t i = 0; i < want.outputs.size(); ++i) {
      ExpectNear(got.outputs[i], want.outputs[i], op.signature.outputs[i].dtype,
                 "output " + std::to_string(i));
    }
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      ExpectNear(got.gradients[i], want.gradients[i], TypeOfGradient(op_case, op, i),
                 "gradient of input " + std::to_string(i));
    }
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
  ForEachRun([](const RunResult& result) { EXPECT_THAT(result.overruns, testing::IsEmpty()); });
}

TEST_P(OpCalls, LeavesAloneWhatIsNotItsOwn) {
  CONTRACT(MUST, kHeader,
           "Forward writes outputs, saved bytes, workspace and, while it trains, buffers; Backward "
           "writes gradients of inputs and workspace. All else stays as it is.");
  ForEachRun([](const RunResult& result) { EXPECT_THAT(result.changes, testing::IsEmpty()); });
}

TEST_P(OpCalls, WritesAllAndReadsNothingUnwritten) {
  CONTRACT(MUST, kHeader,
           "Forward writes every element of the outputs, Backward of the gradients; what they read "
           "of memory that nobody has written, nothing depends on.");
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    const Problem problem = NewProblem(op_case, op);
    ExpectSame(Run(op, problem, {.poison = std::byte{0x3e}}), Run(op, problem), op_case, op);
  });
}

TEST_P(OpCalls, BackwardReadsWhatItSays) {
  CONTRACT(MUST, kHeader,
           "Backward reads no input and no output but those of backward_reads_inputs and "
           "backward_reads_outputs: their memory may be another value's by then.");
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    const Problem problem = NewProblem(op_case, op);
    ExpectSame(Run(op, problem, {.hide_undeclared = true}), Run(op, problem), op_case, op);
  });
}

TEST_P(OpCalls, AddsToGradients) {
  CONTRACT(MUST, kHeader,
           "Where OpCall::accumulate names an input, Backward adds its gradient to what is there, "
           "for any of the inputs of OpSignature::accumulates.");
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    const Problem problem = NewProblem(op_case, op);
    const RunResult written = Run(op, problem);
    std::set<uint32_t> masks = {op.signature.accumulates};
    for (size_t i = 0; i < op.inputs(); ++i) masks.insert(op.signature.accumulates & 1u << i);
    for (const uint32_t mask : masks) {
      const RunResult added = Run(op, problem, {.accumulate = mask});
      for (size_t i = 0; i < op.inputs(); ++i) {
        const std::vector<float>& gradient = written.gradients[i];
        ExpectNear(added.gradients[i], (mask >> i & 1) != 0 ? PlusBefore(gradient) : gradient,
                   TypeOfGradient(op_case, op, i), "gradient of input " + std::to_string(i));
      }
    }
  });
}

TEST_P(OpCalls, SharesMemoryWhereItSaysSo) {
  CONTRACT(MUST, kHeader,
           "in_place_of, gradient_in_place, passes_gradient and equal_gradients allow the core to "
           "share memory; the results are the same with it and without.");
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    const Problem problem = NewProblem(op_case, op);
    const RunResult apart = Run(op, problem);
    for (const RunOptions& shared :
         {RunOptions{.in_place = true}, RunOptions{.share_gradient = true},
          RunOptions{.gradient_in_place = true}}) {
      ExpectSame(Run(op, problem, shared), apart, op_case, op);
    }
    ExpectSame(Run(op, problem, {.in_place = true, .training = false}),
               Run(op, problem, {.training = false}), op_case, op);
  });
}

TEST_P(OpCalls, TakesNoSamples) {
  CONTRACT(MUST, kHeader,
           "The number of samples can be 0: gradients of parameters become, or stay, the sum over "
           "nothing, and a loss is 0.");
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    if (op_case.sample.samples() == 0) return;
    const Problem problem = NewProblem(op_case, op, 0);
    const RunResult written = Run(op, problem), evaluated = Run(op, problem, {.training = false});
    const RunResult added = Run(op, problem, {.accumulate = op.signature.accumulates});
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
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    const int32_t outputs = op.signature.is_loss != 0 ? 1 : op.signature.output_count;
    for (int32_t k = 0; outputs > 1 && k < outputs; ++k) {
      Problem problem = NewProblem(op_case, op);
      for (const uint32_t mask : {0u, op.signature.accumulates}) {
        const RunResult missing = Run(op, problem, {.accumulate = mask, .missing = 1u << k});
        std::ranges::fill(problem.output_gradients[static_cast<size_t>(k)].values, 0.0);
        const RunResult zeros = Run(op, problem, {.accumulate = mask});
        for (size_t i = 0; i < op.inputs(); ++i) {
          ExpectNear(missing.gradients[i], zeros.gradients[i], TypeOfGradient(op_case, op, i),
                     "without the gradient of output " + std::to_string(k));
        }
      }
    }
  });
}

TEST_P(OpCalls, TakesUnwantedGradients) {
  CONTRACT(MUST, kHeader,
           "The data of an input's gradient is null where none is wanted; the others are as "
           "always.");
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    const Problem problem = NewProblem(op_case, op);
    const RunResult all = Run(op, problem);
    for (size_t one = 0; one < op.inputs(); ++one) {
      for (const uint32_t wanted : {1u << one, ~(1u << one)}) {
        if ((op.signature.differentiable_inputs & wanted) == 0) continue;
        const RunResult some = Run(op, problem, {.wanted = wanted});
        for (size_t i = 0; i < op.inputs(); ++i) {
          if ((wanted >> i & 1) == 0) continue;
          ExpectNear(some.gradients[i], all.gradients[i], TypeOfGradient(op_case, op, i),
                     "gradient of input " + std::to_string(i) + " without that of others");
        }
      }
    }
  });
}

TEST_P(OpCalls, RepeatsItself) {
  CONTRACT(MUST, kHeader,
           "The same call gives the same bits, whatever came before, from any instance: ops are "
           "deterministic for a fixed number of threads.");
  const LoadedOps others = LoadUnderTest();
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    const Problem problem = NewProblem(op_case, op);
    const RunResult first = Run(op, problem);
    Run(op, NewProblem(op_case, op, op_case.sample.samples(), UnderTest().seed + 1),
        {.random = {.step = 4}});
    ExpectSameBits(Run(op, problem), first);
    MadeOp again = Must(ops_.Make(op_case.sample)), other = Must(others.Make(op_case.sample));
    ExpectSameBits(Run(again, problem), first);
    ExpectSameBits(Run(other, problem), first);
  });
}

TEST_P(OpCalls, KeepsInstancesApart) {
  CONTRACT(MUST, kHeader,
           "Between Forward and Backward of one instance others run, of the same op and of other "
           "ranks, which may be threads of one process.");
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    MadeOp second = Must(ops_.Make(op_case.sample));
    const Problem one = NewProblem(op_case, op),
                  two = NewProblem(op_case, op, op_case.sample.samples(), UnderTest().seed + 1);
    const RunResult first = Run(op, one), other = Run(second, two);
    OpRun a(ops_.device(), op, one), b(ops_.device(), second, two);
    a.Forward();
    b.Forward();
    a.Backward();
    b.Backward();
    ExpectSame(a.result(), first, op_case, op);
    ExpectSame(b.result(), other, op_case, op);
    const auto rank = [&](const Problem& problem, const RunResult& want) {
      const LoadedOps ops = LoadUnderTest({.local_world_size = 1});
      MadeOp made = Must(ops.Make(op_case.sample));
      for (int i = 0; i < 3; ++i) {
        ExpectSame(RunOp(ops.device(), made, problem), want, op_case, made);
      }
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
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    const Problem problem = NewProblem(op_case, op);
    const auto buffers = [&](bool training) {
      const RunResult result = Run(op, problem, {.training = training});
      const size_t count = result.parameters.size();
      return std::vector(result.parameters.end() - op.signature.parameter_count,
                         result.parameters.begin() + static_cast<ptrdiff_t>(count));
    };
    const auto trained = buffers(true), evaluated = buffers(false);
    for (int32_t i = 0; i < op.signature.parameter_count; ++i) {
      const auto at = static_cast<size_t>(i);
      const bool changes = op.signature.parameters[i].trained == 0;
      EXPECT_EQ(trained[at] != evaluated[at], changes) << op.signature.parameters[i].name.view();
    }
  });
}

// oneDNN allocates some 200 bytes for the threads of a product.
constexpr uint64_t kMostAllocatedBytes = 1024;

TEST_P(OpCalls, AllocatesNoMemoryForData) {
  CONTRACT(SHOULD, kHeader,
           "After the first call Forward and Backward should allocate no memory for data, which is "
           "what OpCall::workspace is for: together at most 1 KiB by operator new.");
  if (IsNoAccelerator().empty()) GTEST_SKIP() << "the library of its device may allocate";
  ForEachCase([&](const OpCase& op_case, MadeOp& op) {
    const Problem problem = NewProblem(op_case, op);
    Run(op, problem);
    EXPECT_LE(Run(op, problem).allocated_bytes, kMostAllocatedBytes);
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
