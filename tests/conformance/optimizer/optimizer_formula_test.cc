// sgd and adamw against their formulas in double precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/conformance/optimizer/optimizer_rig.h"

namespace engine::test {
namespace {

constexpr char kSgd[] = ENGINE_TEST_PLUGIN_DIR "/libengine_sgd.so";
constexpr char kAdamW[] = ENGINE_TEST_PLUGIN_DIR "/libengine_adamw.so";
constexpr size_t kCount = 257;
constexpr uint32_t kSteps = 20;

// One element, as a formula sees it.
struct Reference {
  double value = 0;
  double first = 0;
  double second = 0;
};

// The trainer changes the learning rate in every step.
UpdateFactors Factors(uint32_t step, float weight_decay_scale) {
  return {.gradient_scale = 0.7f,
          .learning_rate = 0.1f / static_cast<float>(step),
          .weight_decay_scale = weight_decay_scale};
}

// Runs some steps of both and compares. `formula(reference, gradient, learning_rate, step)`.
template <typename Formula>
void ExpectFormula(Optimizer& optimizer, float weight_decay_scale, Formula formula) {
  OptimizerRig rig(optimizer, RandomFloats(kCount, 1));
  std::vector<Reference> references;
  for (float value : rig.value()) references.push_back({.value = value});
  for (uint32_t step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradient = RandomFloats(kCount, 100 + step);
    const UpdateFactors factors = Factors(step, weight_decay_scale);
    ASSERT_TRUE(rig.Update(gradient, step, factors).ok());
    for (size_t i = 0; i < kCount; ++i) {
      formula(references[i], double{gradient[i]} * factors.gradient_scale, factors.learning_rate,
              step);
      ASSERT_NEAR(rig.value()[i], references[i].value, 2e-6)
          << "element " << i << " in step " << step;
    }
  }
}

struct SgdCase {
  const char* momentum;
  const char* nesterov;
  const char* weight_decay;
  float weight_decay_scale;
};

class SgdFormula : public testing::TestWithParam<SgdCase> {};

TEST_P(SgdFormula, IsThatOfDoublePrecision) {
  const SgdCase& c = GetParam();
  auto optimizer = MakeOptimizer(
      kSgd, {{"momentum", c.momentum}, {"nesterov", c.nesterov}, {"weight_decay", c.weight_decay}});
  ASSERT_TRUE(optimizer);
  const double momentum = std::stod(c.momentum);
  const double decay = std::stod(c.weight_decay) * c.weight_decay_scale;
  const bool nesterov = c.nesterov == std::string("true");
  EXPECT_EQ(optimizer->traits().state_count, momentum == 0 ? 0 : 1);
  ExpectFormula(*optimizer, c.weight_decay_scale,
                [&](Reference& r, double gradient, double learning_rate, uint32_t step) {
                  const double g = gradient + decay * r.value;
                  r.first = step == 1 ? g : momentum * r.first + g;
                  r.value -= learning_rate * (nesterov ? g + momentum * r.first : r.first);
                });
}

INSTANTIATE_TEST_SUITE_P(
    Options, SgdFormula,
    testing::Values(SgdCase{"0", "false", "0", 1}, SgdCase{"0", "false", "0.05", 1},
                    SgdCase{"0.9", "false", "0", 1}, SgdCase{"0.9", "false", "0.05", 1},
                    SgdCase{"0.9", "false", "0.05", 0}, SgdCase{"0.9", "true", "0.05", 1},
                    SgdCase{"0.5", "true", "0.05", 0.5f}));

TEST(Sgd, NeedsAMomentumForNesterov) {
  SingleHost host;
  auto plugin = PluginUnderTest::Load(kSgd);
  ASSERT_TRUE(plugin.ok());
  auto optimizer = plugin->Create<Optimizer>(host, {{"nesterov", "true"}});
  ASSERT_FALSE(optimizer.ok());
  EXPECT_EQ(optimizer.status().code(), StatusCode::kConfig);
  EXPECT_THAT(optimizer.status().message(), testing::HasSubstr("set momentum"));
}

struct AdamCase {
  const char* beta1;
  const char* beta2;
  const char* epsilon;
  const char* weight_decay;
  float weight_decay_scale;
};

class AdamWFormula : public testing::TestWithParam<AdamCase> {};

TEST_P(AdamWFormula, IsThatOfDoublePrecision) {
  const AdamCase& c = GetParam();
  auto optimizer = MakeOptimizer(kAdamW, {{"beta1", c.beta1},
                                          {"beta2", c.beta2},
                                          {"epsilon", c.epsilon},
                                          {"weight_decay", c.weight_decay}});
  ASSERT_TRUE(optimizer);
  const double beta1 = std::stod(c.beta1), beta2 = std::stod(c.beta2);
  const double epsilon = std::stod(c.epsilon);
  const double decay = std::stod(c.weight_decay) * c.weight_decay_scale;
  ExpectFormula(*optimizer, c.weight_decay_scale,
                [&](Reference& r, double g, double learning_rate, uint32_t step) {
                  r.value -= learning_rate * decay * r.value;
                  r.first = beta1 * r.first + (1 - beta1) * g;
                  r.second = beta2 * r.second + (1 - beta2) * g * g;
                  const double first = r.first / (1 - std::pow(beta1, step));
                  const double second = r.second / (1 - std::pow(beta2, step));
                  r.value -= learning_rate * first / (std::sqrt(second) + epsilon);
                });
}

INSTANTIATE_TEST_SUITE_P(Options, AdamWFormula,
                         testing::Values(AdamCase{"0.9", "0.999", "1e-8", "0.01", 1},
                                         AdamCase{"0.9", "0.999", "1e-8", "0.01", 0},
                                         AdamCase{"0.9", "0.95", "1e-8", "0.1", 0.5f},
                                         AdamCase{"0", "0.9", "0.01", "0", 1}));

TEST(AdamW, RefusesStepZero) {
  auto optimizer = MakeOptimizer(kAdamW);
  ASSERT_TRUE(optimizer);
  OptimizerRig rig(*optimizer, {1});
  EXPECT_EQ(rig.Update({1}, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.value()[0], 1);
}

}  // namespace
}  // namespace engine::test
