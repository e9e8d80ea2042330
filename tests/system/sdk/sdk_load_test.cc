// The example plugins, built by build.sh against the installed SDK, load into this process and do
// their work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <thread>

#include "tests/conformance/plugin_under_test.h"
#include "tests/support/memory_host.h"

namespace engine::test {
namespace {

using testing::HasSubstr;

std::string ExamplePath(const std::string& name) {
  return ENGINE_SDK_PLUGIN_DIR "/libengine_" + name + ".so";
}

TEST(OutOfTreePlugins, LoadAndDescribeThemselves) {
  for (const char* name : {"star_comm", "lifo_sched", "tanh_ops", "spirals", "two_heads"}) {
    auto plugin = PluginUnderTest::Load(ExamplePath(name));
    ASSERT_TRUE(plugin.ok()) << plugin.status().message();
    EXPECT_EQ(plugin->name(), name);
  }
}

TEST(OutOfTreePlugins, AreBuiltByAnotherCompiler) {
  if (std::string(ENGINE_SDK_COMPILER) != "clang++") {
    GTEST_SKIP() << "sanitizers of two compilers do not mix, so all is built with "
                 << ENGINE_SDK_COMPILER;
  }
  for (const char* name : {"star_comm", "lifo_sched", "tanh_ops", "spirals", "two_heads"}) {
    auto plugin = PluginUnderTest::Load(ExamplePath(name));
    ASSERT_TRUE(plugin.ok()) << plugin.status().message();
    EXPECT_THAT(std::string(plugin->header().compiler.view()), HasSubstr("Clang"));
    EXPECT_THAT(__VERSION__, testing::Not(HasSubstr("Clang")));
  }
}

TEST(OutOfTreePlugins, NeedNothingOfTheInstallationButHeadersAndCMakeFiles) {
  size_t files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(ENGINE_SDK_PLUGIN_DIR "/../prefix")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    EXPECT_THAT(entry.path().extension().string(), testing::AnyOf(".h", ".cmake", ".in"));
  }
  EXPECT_GT(files, 12u);
}

// y = 1.7159 tanh(2/3 x) and its gradient by central differences.
TEST(TanhOps, ComputesScaledTanhAndItsGradient) {
  MemoryHost host;
  auto plugin = PluginUnderTest::Load(ExamplePath("tanh_ops"));
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  ASSERT_EQ(plugin->ops().size(), 1u);
  auto library = plugin->Create<OpLibrary>(host);
  ASSERT_TRUE(library.ok()) << library.status().message();
  EXPECT_EQ((*library)->device(), nullptr);
  const OptionValues attributes(plugin->option_specs(), "scaled_tanh", {});
  Op* made = nullptr;
  ASSERT_TRUE((*library)->CreateOp("scaled_tanh", attributes.options(), &made).ok());
  const std::unique_ptr<Op> op(made);

  OpSignature signature;
  const TensorSpec spec{.shape = {2, 3}, .batched = 1};
  ASSERT_TRUE(op->Infer({&spec, 1}, &signature).ok());
  ASSERT_EQ(signature.output_count, 1);
  EXPECT_TRUE(signature.outputs[0].shape == spec.shape);

  float x[] = {-3, -0.5f, 0, 0.25f, 1, 4};
  float y[6], dy[] = {1, 2, 3, -1, 0.5f, 1}, dx[] = {1, 1, 1, 1, 1, 1};
  const TensorView input{x, spec.shape}, output{y, spec.shape}, output_grad{dy, spec.shape},
      input_grad{dx, spec.shape};
  const OpCall call{.inputs = {&input, 1},
                    .outputs = {&output, 1},
                    .output_grads = {&output_grad, 1},
                    .input_grads = {&input_grad, 1},
                    .accumulate = 1};
  ASSERT_TRUE(op->Forward(call).ok());
  ASSERT_TRUE(op->Backward(call).ok());
  const auto formula = [](double v) { return 1.7159 * std::tanh(0.6666667 * v); };
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(y[i], formula(x[i]), 1e-6);
    const double slope = (formula(x[i] + 1e-5) - formula(x[i] - 1e-5)) / 2e-5;
    EXPECT_NEAR(dx[i], 1 + dy[i] * slope, 1e-6);
  }
}

Status RunTransfer(Communicator& communicator, const Transfer& transfer) {
  Work* work = nullptr;
  ENGINE_RETURN_IF_ERROR(communicator.Submit(transfer, &work));
  const Status status = work->WaitHost(transfer.timeout_ms);
  work->Release();
  return status;
}

class StarComm : public testing::TestWithParam<int32_t> {};

// Element i of rank r is 100 r + i, so a wrong sum says which rank is missing.
TEST_P(StarComm, AddsUpOverAllRanks) {
  const int32_t world_size = GetParam();
  const auto hosts = MakeMemoryHosts(world_size);
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      auto plugin = PluginUnderTest::Load(ExamplePath("star_comm"));
      ASSERT_TRUE(plugin.ok()) << plugin.status().message();
      auto communicator = plugin->Create<Communicator>(*hosts[static_cast<size_t>(rank)]);
      ASSERT_TRUE(communicator.ok()) << communicator.status().message();
      std::vector<float> data(10007);
      std::iota(data.begin(), data.end(), static_cast<float>(100 * rank));
      const Transfer in_place{
          .send = data.data(), .recv = data.data(), .count = std::ssize(data), .sequence = 1};
      const Status status = RunTransfer(**communicator, in_place);
      ASSERT_TRUE(status.ok()) << status.message();
      for (int32_t i = 0; i < std::ssize(data); ++i) {
        ASSERT_EQ(data[static_cast<size_t>(i)],
                  static_cast<float>(50 * world_size * (world_size - 1) + world_size * i));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, StarComm, testing::Values(1, 2, 3));

}  // namespace
}  // namespace engine::test
