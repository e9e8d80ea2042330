// The example plugins, built by build.sh against the installed SDK, load into this process and do
// their work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/conformance/plugin_under_test.h"
#include "tests/support/expect_status.h"
#include "tests/support/memory_host.h"

namespace engine::test {
namespace {

std::string ExamplePath(const std::string& name) {
  return ENGINE_SDK_PLUGIN_DIR "/libengine_" + name + ".so";
}

// By another compiler, unless that has sanitizers, of which two do not mix.
TEST(OutOfTreePlugins, LoadAndDescribeThemselves) {
  for (const char* name : {"new_communicator", "spirals", "two_heads", "new_ops"}) {
    auto plugin = ValueOf(PluginUnderTest::Load(ExamplePath(name)));
    EXPECT_EQ(plugin.name(), name);
    if (std::string(ENGINE_SDK_COMPILER) != "clang++") continue;
    EXPECT_THAT(plugin.file().compiler, HasSubstr("Clang"));
    EXPECT_THAT(__VERSION__, testing::Not(HasSubstr("Clang")));
  }
}

TEST(OutOfTreePlugins, NeedNothingOfTheInstallationButHeadersCMakeFilesAndTheKit) {
  size_t files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(ENGINE_SDK_PLUGIN_DIR "/../prefix")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    EXPECT_THAT(entry.path().extension().string(),
                testing::AnyOf(".h", ".cmake", ".in", ".md", ".cc", ".pbtxt", ".rs", ""))
        << entry.path();
  }
  EXPECT_GT(files, 12u);
}

// y = 1.7159 tanh(2/3 x) and its gradient by central differences.
TEST(TanhOps, ComputesScaledTanhAndItsGradient) {
  SingleHost host;
  auto plugin = ValueOf(PluginUnderTest::Load(ExamplePath("new_ops")));
  ASSERT_EQ(plugin.ops().size(), 1u);
  auto library = ValueOf(plugin.Create<OpLibrary>(host));
  EXPECT_EQ(library->device(), nullptr);
  const OptionValues attributes(plugin.option_specs(), "new_ops", {});
  Op* made = nullptr;
  ASSERT_TRUE(library->CreateOp("new_ops", attributes.options(), &made).ok());
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

}  // namespace
}  // namespace engine::test
