// sgd and adamw against their formulas in double precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kit/float16.h"
#include "tests/conformance/plugin_under_test.h"
#include "tools/conform/optimizer/optimizer_rig.h"

namespace engine::test {
namespace {

constexpr size_t kCount = 257;
constexpr uint32_t kSteps = 20;

// One element, as a formula sees it.
struct Reference {
  double value = 0;
  double first = 0;
  double second = 0;
};

struct FormulaCase {
  std::string plugin;
  OptionValues::Overrides options;
  float weight_decay_scale = 1;

  double operator[](const char* option) const { return std::stod(options.at(option)); }
};

// What a step makes of an element.
void Sgd(const FormulaCase& c, Reference& r, double gradient, double rate, uint32_t step) {
  const double momentum = c["momentum"];
  const bool nesterov = c.options.at("nesterov") == "true";
  const double g = gradient + c["weight_decay"] * c.weight_decay_scale * r.value;
  r.first = step == 1 ? g : momentum * r.first + g;
  r.value -= rate * (nesterov ? g + momentum * r.first : r.first);
}

void AdamW(const FormulaCase& c, Reference& r, double g, double rate, uint32_t step) {
  const double beta1 = c["beta1"], beta2 = c["beta2"];
  r.value -= rate * c["weight_decay"] * c.weight_decay_scale * r.value;
  r.first = beta1 * r.first + (1 - beta1) * g;
  r.second = beta2 * r.second + (1 - beta2) * g * g;
  const double first = r.first / (1 - std::pow(beta1, step));
  const double second = r.second / (1 - std::pow(beta2, step));
  r.value -= rate * first / (std::sqrt(second) + c["epsilon"]);
}

class OptimizerFormula : public testing::TestWithParam<FormulaCase> {};

TEST_P(OptimizerFormula, IsThatOfDoublePrecision) {
  const FormulaCase& c = GetParam();
  const auto optimizer = CreateFrom<Optimizer>(PluginPath(c.plugin), c.options);
  OptimizerRig rig(*optimizer, RandomFloats(kCount, 1));
  std::vector<Reference> references;
  for (float value : rig.value()) references.push_back({.value = value});
  for (uint32_t step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradient = RandomFloats(kCount, 100 + step);
    // The trainer changes the learning rate in every step.
    const UpdateFactors factors{.gradient_scale = 0.7f,
                                .learning_rate = 0.1f / static_cast<float>(step),
                                .weight_decay_scale = c.weight_decay_scale};
    Must(rig.Update(gradient, step, factors));
    for (size_t i = 0; i < kCount; ++i) {
      const auto formula = c.plugin == "sgd" ? Sgd : AdamW;
      formula(c, references[i], double{gradient[i]} * factors.gradient_scale, factors.learning_rate,
              step);
      ASSERT_NEAR(rig.value()[i], references[i].value, 2e-6)
          << "element " << i << " in step " << step;
    }
  }
}

FormulaCase SgdCase(const char* momentum, const char* nesterov, const char* decay,
                    float decay_scale) {
  return {"sgd",
          {{"momentum", momentum}, {"nesterov", nesterov}, {"weight_decay", decay}},
          decay_scale};
}

FormulaCase AdamWCase(const char* beta1, const char* beta2, const char* epsilon, const char* decay,
                      float decay_scale) {
  return {"adamw",
          {{"beta1", beta1}, {"beta2", beta2}, {"epsilon", epsilon}, {"weight_decay", decay}},
          decay_scale};
}

INSTANTIATE_TEST_SUITE_P(
    Options, OptimizerFormula,
    testing::Values(SgdCase("0", "false", "0", 1), SgdCase("0", "false", "0.05", 1),
                    SgdCase("0.9", "false", "0", 1), SgdCase("0.9", "false", "0.05", 1),
                    SgdCase("0.9", "false", "0.05", 0), SgdCase("0.9", "true", "0.05", 1),
                    SgdCase("0.5", "true", "0.05", 0.5f),
                    AdamWCase("0.9", "0.999", "1e-8", "0.01", 1),
                    AdamWCase("0.9", "0.999", "1e-8", "0.01", 0),
                    AdamWCase("0.9", "0.95", "1e-8", "0.1", 0.5f),
                    AdamWCase("0", "0.9", "0.01", "0", 1)));

TEST(Optimizers, WriteTheRoundedCopiesThatOpsRead) {
  for (const char* name : {"sgd", "adamw"}) {
    const auto optimizer = CreateFrom<Optimizer>(PluginPath(name));
    const std::vector<float> gradient = RandomFloats(2500, 1);
    std::vector<float> value = RandomFloats(2500, 2), first(2500), second(2500);
    std::vector<uint16_t> copy(2500);
    Must(optimizer->Update({.value = value.data(),
                            .gradient = gradient.data(),
                            .states = {first.data(), second.data()},
                            .count = 2500,
                            .learning_rate = 0.1f,
                            .value_bf16 = copy.data()}));
    for (size_t i = 0; i < copy.size(); ++i) ASSERT_EQ(copy[i], kit::ToBFloat16(value[i])) << name;
  }
}

TEST(Sgd, HasAStateOnlyForMomentum) {
  EXPECT_EQ(CreateFrom<Optimizer>(PluginPath("sgd"))->traits().state_count, 0);
  const auto heavy = CreateFrom<Optimizer>(PluginPath("sgd"), {{"momentum", "0.9"}});
  EXPECT_EQ(heavy->traits().state_count, 1);
}

TEST(Sgd, NeedsAMomentumForNesterov) {
  MemoryHost host;
  const auto optimizer = Must(PluginUnderTest::Load(PluginPath("sgd")))
                             .Create<Optimizer>(host, {{"nesterov", "true"}});
  EXPECT_EQ(optimizer.status().code(), StatusCode::kConfig);
  EXPECT_THAT(optimizer.status().message(), testing::HasSubstr("set momentum"));
}

TEST(AdamW, RefusesStepZero) {
  const auto optimizer = CreateFrom<Optimizer>(PluginPath("adamw"));
  OptimizerRig rig(*optimizer, {1});
  EXPECT_EQ(rig.Update({1}, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.value()[0], 1);
}

}  // namespace
}  // namespace engine::test
