// What every gradient hook must hold to. ENGINE_CONFORMANCE_PLUGINS=<library>[:<library>...] judges
// others than those of this build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/conformance/hook/hook_rig.h"

namespace engine::test {
namespace {

class HookConformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    hook_ = MakeHook(GetParam());
    ASSERT_TRUE(hook_);
  }
  std::unique_ptr<GradientHook> hook_;
};

void ExpectEqual(const std::vector<Gradient>& one, const std::vector<Gradient>& other) {
  for (size_t p = 0; p < one.size(); ++p) {
    ASSERT_EQ(one[p].data, other[p].data) << one[p].name;
    ASSERT_EQ(one[p].scale, other[p].scale) << one[p].name;
  }
}

TEST_P(HookConformance, DescribesItself) {
  auto plugin = PluginUnderTest::Load(GetParam());
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  EXPECT_EQ(plugin->header().kind, PluginKind::kHook);
  EXPECT_THAT(GetParam(), testing::EndsWith("/libengine_" + plugin->name() + ".so"));
}

TEST_P(HookConformance, KeepsGradientsFinite) {
  auto gradients = RandomGradients(1);
  ASSERT_TRUE(hook_->Setup(static_cast<uint32_t>(gradients.size())).ok());
  for (uint64_t step = 1; step <= 3; ++step) {
    gradients = RandomGradients(static_cast<uint32_t>(step));
    const Status status = RunHook(*hook_, gradients, step, InOrder(gradients));
    ASSERT_TRUE(status.ok()) << status.message();
    for (const Gradient& gradient : gradients) {
      for (size_t i = 0; i < gradient.data.size(); ++i)
        ASSERT_TRUE(std::isfinite(gradient.Value(i)));
    }
  }
}

// Gradients arrive in another order on each rank and in each step.
TEST_P(HookConformance, GivesTheSameBitsInAnyOrder) {
  auto expected = RandomGradients(1);
  ASSERT_TRUE(hook_->Setup(static_cast<uint32_t>(expected.size())).ok());
  std::vector<size_t> order = InOrder(expected);
  ASSERT_TRUE(RunHook(*hook_, expected, 1, order).ok());
  std::mt19937 random(5);
  for (uint64_t step = 2; step <= 30; ++step) {
    SCOPED_TRACE("step " + std::to_string(step) + ", orders shuffled with seed 5");
    std::shuffle(order.begin(), order.end(), random);
    auto gradients = RandomGradients(1);
    ASSERT_TRUE(RunHook(*hook_, gradients, step, order).ok());
    ExpectEqual(gradients, expected);
  }
}

// A step may not reach every gradient, and what one step showed must not be seen in the next.
TEST_P(HookConformance, RemembersNothingOfTheStepBefore) {
  auto fresh = MakeHook(GetParam());
  ASSERT_TRUE(fresh);
  auto gradients = RandomGradients(1);
  const auto count = static_cast<uint32_t>(gradients.size());
  ASSERT_TRUE(hook_->Setup(count).ok());
  ASSERT_TRUE(fresh->Setup(count).ok());
  ASSERT_TRUE(RunHook(*hook_, gradients, 1, InOrder(gradients)).ok());

  auto expected = RandomGradients(2);
  gradients = RandomGradients(2);
  const std::vector<size_t> some = {1, 4};
  ASSERT_TRUE(RunHook(*hook_, gradients, 2, some).ok());
  ASSERT_TRUE(RunHook(*fresh, expected, 2, some).ok());
  ExpectEqual(gradients, expected);
}

INSTANTIATE_TEST_SUITE_P(Plugins, HookConformance,
                         testing::ValuesIn(PluginPaths({"clip_value", "clip_norm", "cast_bf16",
                                                        "cast_fp16", "topk"})));

}  // namespace
}  // namespace engine::test
