// What every optimizer must hold to. ENGINE_CONFORMANCE_PLUGINS=<library>[:<library>...] judges
// others than those of this build.
#include <algorithm>
#include <set>

#include "tests/conformance/optimizer/optimizer_rig.h"

namespace engine::test {
namespace {

constexpr size_t kCount = 1003;  // prime to every vector width

class OptimizerConformance : public testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Optimizer> optimizer_ = CreateFrom<Optimizer>(GetParam());
};

TEST_P(OptimizerConformance, DescribesItself) {
  ExpectDescribed(GetParam(), PluginKind::kOptimizer);
  const OptimizerTraits traits = optimizer_->traits();
  ASSERT_GE(traits.state_count, 0);
  ASSERT_LE(traits.state_count, kMaxOptimizerStates);
  EXPECT_GE(traits.state_format_version, 1u);
  std::set<std::string_view> names;
  for (int32_t i = 0; i < traits.state_count; ++i) names.insert(traits.state_names[i].view());
  EXPECT_EQ(names.size(), static_cast<size_t>(traits.state_count)) << "two states of one name";
  EXPECT_EQ(names.count(""), 0u) << "a state without a name";
}

TEST_P(OptimizerConformance, MovesAgainstTheGradient) {
  OptimizerRig rig(*optimizer_, {1, 1, -1, -1});
  ASSERT_TRUE(rig.Update({2, -2, 2, -2}, 1).ok());
  EXPECT_LT(rig.value()[0], 1);
  EXPECT_GT(rig.value()[1], 1);
  EXPECT_LT(rig.value()[2], -1);
  EXPECT_GT(rig.value()[3], -1);
}

// Cuts at odd offsets, so that vector bodies and scalar tails fall on other elements each time.
TEST_P(OptimizerConformance, GivesTheSameBitsHoweverATensorIsCut) {
  if (optimizer_->traits().gate != UpdateGate::kSpan) {
    GTEST_SKIP() << "this optimizer does not offer to update spans";
  }
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    OptimizerRig whole(*optimizer_, RandomFloats(kCount, seed));
    OptimizerRig cut(*optimizer_, RandomFloats(kCount, seed));
    for (uint32_t step = 1; step <= 5; ++step) {
      const std::vector<float> gradient = RandomFloats(kCount, 1000 * seed + step);
      const UpdateFactors factors{.gradient_scale = 0.3f};
      ASSERT_TRUE(whole.Update(gradient, step, factors).ok());
      for (size_t begin = 0; begin < kCount;) {
        const size_t end = std::min<size_t>(kCount, begin + 1 + random() % 70);
        ASSERT_TRUE(cut.Update(gradient, step, factors, begin, end).ok());
        begin = end;
      }
      ASSERT_EQ(whole.value(), cut.value()) << "in step " << step;
      ASSERT_EQ(whole.states(), cut.states()) << "in step " << step;
    }
  }
}

// A power of two scales without rounding, so the bits must agree.
TEST_P(OptimizerConformance, MultipliesTheGradientByItsScale) {
  OptimizerRig scaled(*optimizer_, RandomFloats(kCount, 1));
  OptimizerRig plain(*optimizer_, RandomFloats(kCount, 1));
  for (uint32_t step = 1; step <= 4; ++step) {
    std::vector<float> gradient = RandomFloats(kCount, 100 + step);
    ASSERT_TRUE(scaled.Update(gradient, step, {.gradient_scale = 0.125f}).ok());
    for (float& g : gradient) g *= 0.125f;
    ASSERT_TRUE(plain.Update(gradient, step).ok());
  }
  EXPECT_EQ(scaled.value(), plain.value());
}

TEST_P(OptimizerConformance, LeavesAParameterWithoutGradientAndDecayAlone) {
  OptimizerRig rig(*optimizer_, RandomFloats(kCount, 1));
  const std::vector<float> zero(kCount, 0);
  for (uint32_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(rig.Update(zero, step, {.weight_decay_scale = 0}).ok());
  }
  EXPECT_EQ(rig.value(), RandomFloats(kCount, 1));
}

TEST_P(OptimizerConformance, AcceptsAnEmptySpan) {
  OptimizerRig rig(*optimizer_, RandomFloats(kCount, 1));
  ASSERT_TRUE(rig.Update(RandomFloats(kCount, 2), 1, {}, 5, 5).ok());
  EXPECT_EQ(rig.value(), RandomFloats(kCount, 1));
  EXPECT_TRUE(optimizer_->Update({.step = 1}).ok()) << "an empty parameter has no memory";
}

INSTANTIATE_TEST_SUITE_P(Plugins, OptimizerConformance,
                         testing::ValuesIn(PluginPaths({"sgd", "adamw"})));

}  // namespace
}  // namespace engine::test
