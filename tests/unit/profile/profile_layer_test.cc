// The plugin profile_ops: its numbers against their formula, its times against the clock (at least,
// never at most: a busy machine may be late).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "plugins/profile_ops/numbers.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/support/expect_status.h"
#include "tests/support/memory_host.h"

namespace engine::test {
namespace {

using profile_ops::GradientAt;
using profile_ops::Hash;
using std::chrono::microseconds;
using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Attributes = OptionValues::Overrides;

// What the plugin asks of a device is its type.
class TypedDevice final : public DeviceBase {
 public:
  explicit TypedDevice(const char* type) : type_(type) {}
  const char* type() const noexcept override { return type_; }
  Status Allocate(size_t, void**) noexcept override { return Never(); }
  void Free(void*) noexcept override {}
  Status Copy(void*, const void*, size_t, Stream*) noexcept override { return Never(); }
  Status Zero(void*, size_t, Stream*) noexcept override { return Never(); }
  Status CreateStream(Stream**) noexcept override { return Never(); }
  Status CreateEvent(Event**) noexcept override { return Never(); }

 private:
  static Status Never() { return Status::Error(StatusCode::kUnsupported, "not of this device"); }
  const char* const type_;
};

// One op of a library, with memory for `rows` rows of `columns`.
class Layer {
 public:
  Layer(const Attributes& attributes, const Attributes& options = {}, int64_t rows = 4,
        int64_t columns = 3, int32_t rank = 0)
      : rows_(rows), columns_(columns), host_({.rank = rank, .world_size = 8}, nullptr, &device_) {
    const auto plugin = ValueOf(PluginUnderTest::Load(PluginPaths({"profile_ops"})[0]));
    library_ = ValueOf(plugin.Create<OpLibrary>(host_, options));
    const OptionValues values(plugin.option_specs(), "profile_layer", attributes);
    Op* op = nullptr;
    status_ = library_->CreateOp("profile_layer", values.options(), &op);
    op_.reset(op);
    if (!status_.ok()) return;
    const TensorSpec input{Shape{rows, columns}, DType::kFloat32, 1};
    status_ = op_->Infer({&input, 1}, &signature);
    x.resize(static_cast<size_t>(rows * columns));
    std::iota(x.begin(), x.end(), 1.0f);
    dy = y = dx = x;
    weight.assign(static_cast<size_t>(signature.parameters[0].shape.Count()), 0.0f);
    gradient.assign(weight.size(), 1000.0f);
  }

  const Status& status() const { return status_; }

  void Forward(uint64_t seed, uint64_t step, bool in_place = false) {
    Run(&Op::Forward, seed, step, 0, in_place);
  }
  void Backward(uint64_t seed, uint64_t step, uint32_t accumulate = 0) {
    Run(&Op::Backward, seed, step, accumulate, false);
  }

  OpSignature signature;
  std::vector<float> x, y, dy, dx, weight, gradient;

 private:
  void Run(Status (Op::*pass)(const OpCall&) noexcept, uint64_t seed, uint64_t step,
           uint32_t accumulate, bool in_place) {
    const Shape shape{rows_, columns_};
    const Shape parameters{static_cast<int64_t>(weight.size())};
    const TensorView inputs[] = {{x.data(), shape}, {weight.data(), parameters}};
    const TensorView outputs[] = {{in_place ? x.data() : y.data(), shape}};
    const TensorView output_grads[] = {{dy.data(), shape}};
    const TensorView input_grads[] = {{dx.data(), shape}, {gradient.data(), parameters}};
    const Status status = ((*op_).*pass)({.inputs = inputs,
                                          .outputs = outputs,
                                          .output_grads = output_grads,
                                          .input_grads = input_grads,
                                          .accumulate = accumulate,
                                          .seed = seed,
                                          .step = step});
    EXPECT_TRUE(status.ok()) << status.message();
  }

  const int64_t rows_, columns_;
  TypedDevice device_{"cpu"};
  MemoryHost host_;
  std::unique_ptr<OpLibrary> library_;
  std::unique_ptr<Op> op_;
  Status status_;
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
  ASSERT_TRUE(layer.status().ok()) << layer.status().message();
  EXPECT_EQ(layer.signature.parameter_count, 1);
  EXPECT_EQ(layer.signature.parameters[0].shape, Shape{100});
  EXPECT_EQ(layer.signature.outputs[0].shape, (Shape{4, 3}));
  EXPECT_EQ(layer.signature.outputs[0].batched, 1u);
  EXPECT_EQ(Layer(Of("100"), {{"size_scale", "0.25"}}).signature.parameters[0].shape, Shape{25});
  EXPECT_EQ(Layer(Of("3"), {{"size_scale", "0.001"}}).signature.parameters[0].shape, Shape{1});
}

TEST(ProfileLayerTest, TooManyParametersAreRefused) {
  const Layer layer(Of("1000000000"), {{"size_scale", "2"}});
  EXPECT_THAT(layer.status(), FailsWith(StatusCode::kConfig, HasSubstr("size_scale")));
}

TEST(ProfileLayerTest, WorksOnlyBesideACpuDevice) {
  const auto plugin = ValueOf(PluginUnderTest::Load(PluginPaths({"profile_ops"})[0]));
  TypedDevice cuda("cuda");
  for (Device* device : {static_cast<Device*>(&cuda), static_cast<Device*>(nullptr)}) {
    MemoryHost host({}, nullptr, device);
    EXPECT_THAT(plugin.Create<OpLibrary>(host), FailsWith(StatusCode::kConfig));
  }
}

TEST(ProfileLayerTest, GradientsAreTheFormulaTimesTheRows) {
  Layer layer(Of("1000", "5"), {}, 4);
  layer.Backward(7, 3);
  const auto key = static_cast<uint32_t>(Hash(7, 5, 3));
  for (uint32_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(layer.gradient[i], 4 * GradientAt(key, i)) << i;
  }
  EXPECT_THAT(layer.dx, ElementsAreArray(layer.dy));
  EXPECT_EQ(std::set<float>(layer.gradient.begin(), layer.gradient.end()).size(), 16u);
}

// So the sum over ranks, which divides by all rows, is the same for any number of ranks.
TEST(ProfileLayerTest, GradientsDependOnTheLayerAndTheStepButNotOnTheRank) {
  const auto gradient = [](const char* id, uint64_t seed, uint64_t step, int32_t rank) {
    Layer layer(Of("1000", id), {{"jitter", "0.5"}}, 4, 3, rank);
    layer.Backward(seed, step);
    return layer.gradient;
  };
  const auto reference = gradient("1", 1, 1, 0);
  EXPECT_EQ(gradient("1", 1, 1, 5), reference);
  EXPECT_NE(gradient("2", 1, 1, 0), reference);
  EXPECT_NE(gradient("1", 2, 1, 0), reference);
  EXPECT_NE(gradient("1", 1, 2, 0), reference);
}

TEST(ProfileLayerTest, AddsToGradientsWhereItIsToldTo) {
  Layer layer(Of("10"));
  layer.Backward(1, 1, 0b11);
  const auto key = static_cast<uint32_t>(Hash(1, 0, 1));
  EXPECT_EQ(layer.gradient[9], 1000 + 4 * GradientAt(key, 9));
  EXPECT_EQ(layer.dx[0], 2 * layer.dy[0]);
}

TEST(ProfileLayerTest, ARankWithoutSamplesHasGradientsOfZero) {
  Layer layer(Of("10"), {}, 0);
  layer.Forward(1, 1);
  layer.Backward(1, 1);
  EXPECT_THAT(layer.gradient, Each(0.0f));
}

// Every parameter is read in some step: a forward pass that misses an update shows in the loss.
TEST(ProfileLayerTest, TheOutputDependsOnAnotherParameterInEachStep) {
  Layer layer(Of("7"), {}, 2, 3);
  std::iota(layer.weight.begin(), layer.weight.end(), 1.0f);
  std::set<float> seen;
  for (uint64_t step = 0; step < 200; ++step) {
    layer.Forward(1, step);
    const float w = layer.y[0] - layer.x[0];
    EXPECT_EQ(layer.y[1] - layer.x[1], -w);
    EXPECT_EQ(layer.y[2] - layer.x[2], w);
    EXPECT_EQ(layer.y[3] - layer.x[3], w);  // the next row
    seen.insert(w);
  }
  EXPECT_EQ(seen.size(), 7u);
}

TEST(ProfileLayerTest, WorksInPlace) {
  Layer layer(Of("1")), other(Of("1"));
  layer.weight[0] = other.weight[0] = 0.5f;
  layer.Forward(1, 1, true);
  other.Forward(1, 1, false);
  EXPECT_EQ(layer.x, other.y);
}

// The sum of all sleeps, since one that is late shortens the next.
TEST(ProfileLayerTest, PassesLastAsLongAsTheyAreToldAndUseNoProcessor) {
  Layer layer(Of("10", "0", "2000", "5000"), {{"time_scale", "2"}});
  const double processor = ProcessorSeconds();
  EXPECT_GE(Elapsed([&] { layer.Forward(1, 1); }), microseconds(4000));
  const auto elapsed = Elapsed([&] {
    for (int i = 0; i < 5; ++i) layer.Backward(1, 1);
  });
  EXPECT_GE(elapsed, microseconds(50'000 - 1000));
  EXPECT_LT(ProcessorSeconds() - processor, 0.027);  // half of the time
}

TEST(ProfileLayerTest, JitterIsAFunctionOfSeedRankLayerAndStep) {
  const auto time = [](uint64_t step, int32_t rank) {
    Layer layer(Of("1", "3", "10000"), {{"jitter", "0.9"}}, 4, 3, rank);
    return Elapsed([&] { layer.Forward(1, step); });
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
