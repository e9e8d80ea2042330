// clip_value and clip_norm against their formulas in double precision, alone and as a chain.

#include <cmath>
#include <limits>

#include "tests/conformance/plugin_under_test.h"
#include "tests/support/matchers.h"
#include "tools/conform/hook/hook_rig.h"

namespace engine::test {
namespace {

const std::string kClipValue = PluginPath("clip_value"), kClipNorm = PluginPath("clip_norm");

double Norm(const std::vector<Gradient>& gradients) {
  double sum = 0;
  for (const Gradient& gradient : gradients) {
    for (size_t i = 0; i < gradient.data.size(); ++i) sum += std::pow(gradient.Value(i), 2);
  }
  return std::sqrt(sum);
}

// Makes the hook and runs one step over `gradients`.
Status RunOnce(const std::string& path, const OptionValues::Overrides& options,
               std::vector<Gradient>& gradients) {
  const auto hook = CreateFrom<GradientHook>(path, options);
  ENGINE_RETURN_IF_ERROR(hook->Setup(static_cast<uint32_t>(gradients.size())));
  return RunHook(*hook, gradients, 1);
}

TEST(ClipValue, LimitsEveryElement) {
  const auto before = RandomGradients(3);
  auto after = before;
  ASSERT_TRUE(RunOnce(kClipValue, {{"threshold", "0.5"}}, after).ok());
  size_t clipped = 0;
  for (size_t p = 0; p < before.size(); ++p) {
    for (size_t i = 0; i < before[p].data.size(); ++i) {
      const double expected = std::clamp(before[p].Value(i), -0.5, 0.5);
      ASSERT_NEAR(after[p].Value(i), expected, 1e-7) << before[p].name << " element " << i;
      ASSERT_LE(std::fabs(after[p].Value(i)), 0.5);
      clipped += std::fabs(before[p].Value(i)) > 0.5;
    }
  }
  EXPECT_GT(clipped, 100u);
}

TEST(ClipValue, SeesTheScaleAndNotTheRawData) {
  std::vector<Gradient> gradients = {{"w", {10, -10, 1, 300}, 0.01f}};
  ASSERT_TRUE(RunOnce(kClipValue, {{"threshold", "0.5"}}, gradients).ok());
  EXPECT_FLOAT_EQ(static_cast<float>(gradients[0].Value(0)), 0.1f);
  EXPECT_FLOAT_EQ(static_cast<float>(gradients[0].Value(1)), -0.1f);
  EXPECT_FLOAT_EQ(static_cast<float>(gradients[0].Value(3)), 0.5f);
}

// A diverged training must not look healthy because of a clip.
TEST(ClipValue, KeepsNaNAndLimitsInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<Gradient> gradients = {{"w", {std::nanf(""), infinity, -infinity}, 1}};
  ASSERT_TRUE(RunOnce(kClipValue, {{"threshold", "2"}}, gradients).ok());
  EXPECT_TRUE(std::isnan(gradients[0].Value(0)));
  EXPECT_EQ(gradients[0].Value(1), 2);
  EXPECT_EQ(gradients[0].Value(2), -2);
}

TEST(ClipNorm, ScalesAllGradientsToTheCommonNorm) {
  const auto before = RandomGradients(4);
  auto after = before;
  ASSERT_TRUE(RunOnce(kClipNorm, {{"max_norm", "1.5"}}, after).ok());
  EXPECT_NEAR(Norm(after), 1.5, 1e-6);
  const double factor = 1.5 / Norm(before);
  for (size_t p = 0; p < before.size(); ++p) {
    EXPECT_EQ(after[p].data, before[p].data) << "the data was touched";
    EXPECT_NEAR(after[p].scale, before[p].scale * factor, 1e-7);
  }
}

TEST(ClipNorm, LeavesSmallGradientsAlone) {
  const auto before = RandomGradients(4);
  auto after = before;
  ASSERT_TRUE(RunOnce(kClipNorm, {{"max_norm", "1e6"}}, after).ok());
  for (size_t p = 0; p < before.size(); ++p) EXPECT_EQ(after[p].scale, before[p].scale);
}

TEST(ClipNorm, AcceptsGradientsThatAreAllZero) {
  std::vector<Gradient> gradients = {{"w", {0, 0, 0}, 0.5f}};
  ASSERT_TRUE(RunOnce(kClipNorm, {{"max_norm", "1"}}, gradients).ok());
  EXPECT_EQ(gradients[0].scale, 0.5f);
}

// The squares of these overflow float32.
TEST(ClipNorm, HandlesLargeGradients) {
  std::vector<Gradient> gradients = {{"w", std::vector<float>(1000, 1e30f), 1}};
  ASSERT_TRUE(RunOnce(kClipNorm, {{"max_norm", "1"}}, gradients).ok());
  EXPECT_NEAR(Norm(gradients), 1, 1e-6);
}

TEST(ClipNorm, NamesTheGradientThatIsNotFinite) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (size_t position : {0u, 31u, 32u, 1000u}) {
      auto gradients = RandomGradients(4);
      gradients[3].data[position] = bad;
      const Status status = RunOnce(kClipNorm, {{"max_norm", "1"}}, gradients);
      ASSERT_EQ(status.code(), StatusCode::kConfig) << "at " << position;
      EXPECT_THAT(status.message(), HasSubstr("'layer4.weight' in step 1"));
      EXPECT_THAT(status.message(), HasSubstr("lower the learning rate"));
    }
  }
}

// As HandlesLargeGradients, and a rank whose part is small: what ranks tell each other is float32.
TEST(ClipNorm, HandlesLargeGradientsWhenSharded) {
  for (const float large : {1e-25f, 1.0f, 1e9f, 4e9f, 1e20f, 1e30f, 1e36f}) {
    std::vector<Gradient> gradients = {{"w", std::vector<float>(1000, large), 1}};
    gradients[0].data[0] = 1;
    std::vector<std::unique_ptr<GradientHook>> ranks;
    for (int r = 0; r < 2; ++r) {
      ranks.push_back(CreateFrom<GradientHook>(kClipNorm, {{"max_norm", "0.5"}}));
      Must(ranks.back()->Setup(1));
    }
    const double norm = Norm(gradients);
    std::vector<std::vector<GradientSpan>> shares = {{{0, 0, 1, 1}}, {{0, 1, 999, 1}}};
    size_t number_count = 0;
    ASSERT_TRUE(RunHookSharded(ranks, gradients, 1, shares, &number_count).ok());
    for (const auto& share : shares) {
      EXPECT_NEAR(share[0].scale * norm, 0.5, 1e-6) << "elements of " << large;
    }
  }
}

// Per element first, then the norm of what is left.
TEST(HookChain, AppliesInOrder) {
  auto gradients = RandomGradients(6);
  auto expected = gradients;
  ASSERT_TRUE(RunOnce(kClipValue, {{"threshold", "0.1"}}, gradients).ok());
  ASSERT_TRUE(RunOnce(kClipNorm, {{"max_norm", "0.5"}}, gradients).ok());
  for (Gradient& gradient : expected) {
    for (float& x : gradient.data) x = std::clamp(x * gradient.scale, -0.1f, 0.1f);
    gradient.scale = 1;
  }
  const double factor = 0.5 / Norm(expected);
  ASSERT_LT(factor, 1);
  for (size_t p = 0; p < gradients.size(); ++p) {
    for (size_t i = 0; i < gradients[p].data.size(); ++i) {
      ASSERT_NEAR(gradients[p].Value(i), expected[p].Value(i) * factor, 1e-7);
    }
  }
}

}  // namespace
}  // namespace engine::test
