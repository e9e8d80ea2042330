// The plugin profile_ops: its numbers against their formula, its times against the clock (at least,
// never at most: a busy machine may be late).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <vector>

#include "plugins/profile_ops/numbers.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/support/expect_status.h"
#include "tools/conform/ops/op_sample.h"

namespace engine::test {
namespace {

using profile_ops::GradientAt;
using profile_ops::Hash;
using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;
using Attributes = OptionValues::Overrides;

// One op of a library, fed with 4 rows of 3.
class Layer {
 public:
  explicit Layer(const Attributes& attributes, const Attributes& options = {}, int32_t rank = 0)
      : ops_(LoadedOps::Load(Library(), options, {.rank = rank, .world_size = 8})) {
    const OpSample sample{"profile_layer", attributes, {{Shape{4, 3}, DType::kFloat32, 1}}};
    Result<MadeOp> made = ops_.Make(sample);
    status = made.status();
    if (!status.ok()) return;
    made_ = std::move(*made);
    problem = MakeProblem(sample, {}, made_, 4, 1);
  }

  static const PluginUnderTest& Library() {
    static const PluginUnderTest plugin =
        ValueOf(PluginUnderTest::Load(PluginPaths({"profile_ops"})[0]));
    return plugin;
  }

  RunResult Run(uint64_t seed, uint64_t step) {
    return RunOp(ops_.device(), made_, problem, {.random = {.seed = seed, .step = step}});
  }
  OpRun Start() { return OpRun(ops_.device(), made_, problem); }
  const OpSignature& signature() const { return made_.signature; }

  Status status;
  Problem problem;

 private:
  const LoadedOps ops_;
  MadeOp made_;
};

Attributes Of(const char* parameters, const char* id = "0", const char* forward_us = "0",
              const char* backward_us = "0") {
  return {{"parameters", parameters},
          {"id", id},
          {"forward_us", forward_us},
          {"backward_us", backward_us}};
}

template <typename Work>
std::chrono::nanoseconds Elapsed(const Work& work) {
  const auto start = Clock::now();
  work();
  return Clock::now() - start;
}

double ProcessorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(ProfileLayerTest, HasTheParametersItIsToldAndTheShapeOfItsInput) {
  const Layer layer(Of("100"));
  EXPECT_EQ(layer.signature().parameter_count, 1);
  EXPECT_EQ(layer.signature().parameters[0].shape, Shape{100});
  EXPECT_EQ(layer.signature().outputs[0].shape, (Shape{4, 3}));
  EXPECT_EQ(layer.signature().outputs[0].batched, 1u);
  EXPECT_EQ(Layer(Of("100"), {{"size_scale", "0.25"}}).signature().parameters[0].shape, Shape{25});
  EXPECT_EQ(Layer(Of("3"), {{"size_scale", "0.001"}}).signature().parameters[0].shape, Shape{1});
}

TEST(ProfileLayerTest, TooManyParametersAreRefused) {
  const Layer layer(Of("1000000000"), {{"size_scale", "2"}});
  EXPECT_THAT(layer.status, FailsWith(StatusCode::kConfig, HasSubstr("size_scale")));
}

TEST(ProfileLayerTest, WorksOnlyBesideACpuDevice) {
  HostDevice cuda("cuda");
  for (Device* device : {static_cast<Device*>(&cuda), static_cast<Device*>(nullptr)}) {
    MemoryHost host({}, nullptr, device);
    EXPECT_THAT(Layer::Library().Create<OpLibrary>(host), FailsWith(StatusCode::kConfig));
  }
}

TEST(ProfileLayerTest, GradientsAreTheFormulaTimesTheRows) {
  const RunResult result = Layer(Of("1000", "5")).Run(7, 3);
  const auto key = static_cast<uint32_t>(Hash(7, 5, 3));
  const std::vector<float>& gradient = result.gradients[1];
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(gradient[i], 4 * GradientAt(key, i)) << i;
  EXPECT_EQ(std::set<float>(gradient.begin(), gradient.end()).size(), 16u);
}

// So the sum over ranks, which divides by all rows, is the same for any number of ranks.
TEST(ProfileLayerTest, GradientsDependOnTheLayerAndTheStepButNotOnTheRank) {
  const auto gradient = [](const char* id, uint64_t seed, uint64_t step, int32_t rank) {
    return Layer(Of("1000", id), {{"jitter", "0.5"}}, rank).Run(seed, step).gradients;
  };
  const auto reference = gradient("1", 1, 1, 0);
  EXPECT_EQ(gradient("1", 1, 1, 5), reference);
  EXPECT_NE(gradient("2", 1, 1, 0), reference);
  EXPECT_NE(gradient("1", 2, 1, 0), reference);
  EXPECT_NE(gradient("1", 1, 2, 0), reference);
}

// Every parameter is read in some step: a forward pass that misses an update shows in the loss.
TEST(ProfileLayerTest, TheOutputDependsOnAnotherParameterInEachStep) {
  Layer layer(Of("7"));
  std::ranges::fill(layer.problem.inputs[0].values, 0.0);
  std::set<float> seen;
  for (uint64_t step = 0; step < 200; ++step) {
    const std::vector<float> y = layer.Run(1, step).outputs[0];
    EXPECT_EQ(y[1], -y[0]);
    EXPECT_EQ(y[2], y[0]);
    EXPECT_EQ(y[3], y[0]);  // the next row
    seen.insert(y[0]);
  }
  EXPECT_EQ(seen.size(), 7u);
}

// The sum of all sleeps, since one that is late shortens the next.
TEST(ProfileLayerTest, PassesLastAsLongAsTheyAreToldAndUseNoProcessor) {
  Layer layer(Of("10", "0", "2000", "5000"), {{"time_scale", "2"}});
  OpRun run = layer.Start();
  const double processor = ProcessorSeconds();
  EXPECT_GE(Elapsed([&] { run.Forward(); }), microseconds(4000));
  const auto elapsed = Elapsed([&] {
    for (int i = 0; i < 5; ++i) run.Backward();
  });
  EXPECT_GE(elapsed, microseconds(50'000 - 1000));
  EXPECT_LT(ProcessorSeconds() - processor, 0.027);  // half of the time
}

TEST(ProfileLayerTest, JitterIsAFunctionOfSeedRankLayerAndStep) {
  const auto time = [](uint64_t step, int32_t rank) {
    Layer layer(Of("1", "3", "10000"), {{"jitter", "0.9"}}, rank);
    return Elapsed([&] { layer.Run(1, step); });
  };
  // As the plugin says: from 1 - jitter to 1 + jitter.
  const auto least = [](uint64_t step, uint64_t rank) {
    const double factor = 1 + 0.9 * profile_ops::Symmetric(Hash(1, 3, step, rank << 1));
    return std::chrono::nanoseconds(static_cast<int64_t>(10e6 * factor) - 1);
  };
  std::set<int64_t> different;
  for (uint64_t step = 0; step < 4; ++step) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      const auto expected = least(step, static_cast<uint64_t>(rank));
      EXPECT_GE(time(step, rank), expected) << "step " << step << " rank " << rank;
      EXPECT_GE(expected, microseconds(1000 - 1));
      EXPECT_LE(expected, microseconds(19'000));
      different.insert(expected.count());
    }
  }
  EXPECT_EQ(different.size(), 8u);
}

}  // namespace
}  // namespace engine::test
