// Gradients against central differences along random directions and along single elements. A
// function may have kinks: where one step does not show the gradient, what two steps, and both sides
// of a point, make of the slope says how far it is known.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tools/conform/ops/ops_suite.h"

namespace engine::conform {
namespace {

constexpr int kDense = 4, kSingle = 8;  // directions of each kind, per input
constexpr int64_t kMostElements = 512;  // of an input: with more, steps are near rounding

class Slopes {
 public:
  using Evaluate = std::function<std::vector<float>(const Problem&)>;

  Slopes(const Evaluate& evaluate, const Problem& problem, size_t input)
      : evaluate_(evaluate),
        problem_(problem),
        dy_(problem.AllGradients()),
        input_(input),
        at_(evaluate(problem)),
        step_(GridStep(problem.inputs[input].values.size()) / 2) {}

  struct Slope {
    double value = 0, error = 0;
  };
  Slope Roughly(const Values& direction) {
    const Sides wide = At(direction, step_);
    return {(wide.below + wide.above) / 2, wide.noise};
  }
  Slope Along(const Values& direction) {
    const Sides wide = At(direction, step_), narrow = At(direction, step_ / 2);
    const double central = std::abs(wide.below + wide.above - narrow.below - narrow.above) / 2;
    const double kink = std::abs(2 * (narrow.above - narrow.below) - (wide.above - wide.below));
    return {(narrow.below + narrow.above) / 2, 2 * central + kink + narrow.noise};
  }

 private:
  // Differences to the point itself, on both sides of it.
  struct Sides {
    double below = 0, above = 0, noise = 0;
  };

  Sides At(const Values& direction, double step) {
    const std::vector<float> above = Moved(direction, step), below = Moved(direction, -step);
    Sides sides;
    double noise = 0;
    for (size_t i = 0; i < at_.size(); ++i) {
      const double y = at_[i], up = above[i], down = below[i];
      sides.above += dy_[i] * (up - y) / step;
      sides.below += dy_[i] * (y - down) / step;
      const double rounding = dy_[i] * std::max(1.0, std::abs(y)) * 0x1p-24;
      if (up != down) noise += rounding * rounding;  // of others there is none
    }
    sides.noise = 8 * std::sqrt(noise) / step;
    return sides;
  }

  std::vector<float> Moved(const Values& direction, double step) const {
    Problem moved = problem_;
    Values& values = moved.inputs[input_].values;
    for (size_t i = 0; i < values.size(); ++i) values[i] += direction[i] * step;
    return evaluate_(moved);
  }

  const Evaluate& evaluate_;
  const Problem& problem_;
  const Values dy_;
  const size_t input_;
  const std::vector<float> at_;
  const double step_;
};

class OpGradients : public Ops {
 protected:
  // Of all inputs. Whether there was anything to check.
  bool Check(MadeOp& op, const Problem& problem) {
    const auto fits = [](const Tensor& tensor) {
      return tensor.spec.dtype != DType::kBFloat16 && tensor.spec.dtype != DType::kFloat16 &&
             tensor.values.size() <= kMostElements;
    };
    if (op.signature.differentiable_inputs == 0 || !std::ranges::all_of(problem.inputs, fits) ||
        !std::ranges::all_of(problem.output_gradients, fits)) {
      return false;
    }
    const RunResult result = Run(op, problem);
    for (size_t i = 0; i < problem.inputs.size(); ++i) {
      if (op.differentiable(i)) CheckInput(op, problem, i, result.gradients[i]);
    }
    return true;
  }

 private:
  void CheckInput(MadeOp& op, const Problem& problem, size_t input,
                  const std::vector<float>& gradient) {
    const Slopes::Evaluate evaluate = [&](const Problem& at) {
      return Run(op, at, {.backward = false}).AllOutputs();
    };
    Slopes slopes(evaluate, problem, input);
    std::mt19937 random(UnderTest().seed);
    int known = 0;
    for (int k = 0; k < kDense + kSingle; ++k) {
      Values direction(gradient.size());
      const size_t single = random() % gradient.size();
      for (double& part : direction) part = k < kDense ? 2.0 * (random() % 2) - 1 : 0;
      if (k >= kDense) direction[single] = 1;
      double derivative = 0, terms = 0;
      for (size_t i = 0; i < gradient.size(); ++i) {
        derivative += direction[i] * gradient[i];
        terms += std::abs(direction[i] * gradient[i]);
      }
      Slopes::Slope slope;
      double largest = 0, tolerance = 0;
      for (const auto find : {&Slopes::Roughly, &Slopes::Along}) {
        slope = (slopes.*find)(direction);
        largest = std::max(std::abs(slope.value), std::abs(derivative));
        tolerance = slope.error + 2e-3 * largest + 1e-4 * terms + 1e-5;
        if (std::abs(derivative - slope.value) <= tolerance) break;
      }
      known += tolerance < 0.25 * largest || largest < 1e-4 ? 1 : 0;
      ASSERT_NEAR(derivative, slope.value, tolerance)
          << "gradient of input " << input << ", along "
          << (k < kDense ? "a random direction" : "element " + std::to_string(single))
          << ", against finite differences; an op whose gradients are meant to be others: "
             "--custom-gradient "
          << GetParam();
    }
    EXPECT_GT(known, 0) << "input " << input
                        << " is said to be differentiable, but no slope was found at any point; "
                           "an op whose gradients are meant to be others: --custom-gradient "
                        << GetParam();
  }
};

TEST_P(OpGradients, GradientsAreTheDerivatives) {
  CONTRACT(MUST, "engine/op.h",
           "Backward gives the gradients of the differentiable inputs: those that arrive at the "
           "outputs times the derivatives of Forward.");
  if (std::ranges::count(UnderTest().custom_gradients, GetParam()) > 0) {
    GTEST_SKIP() << "its gradients are meant to be others (--custom-gradient)";
  }
  bool any = false;
  ForEachCase([&](Trial& trial) {
    any |= Check(trial.op, trial.problem);
    // The actual number of samples counts, not that of Infer.
    const int64_t fewer = trial.problem.samples * 3 / 5;
    if (fewer > 0) Check(trial.op, trial.With(fewer));
  });
  if (!any && !HasFailure()) GTEST_SKIP() << "it has no gradient in float32";
}

INSTANTIATE_TEST_SUITE_P(, OpGradients, testing::ValuesIn(OpsUnderTest()),
                         [](const auto& op) { return op.param; });

}  // namespace
}  // namespace engine::conform
