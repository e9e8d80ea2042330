// Losses of one number against another, as kit/loss_shapes.h says.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "loss.h"

namespace engine::cpu_ops {
namespace {

// Of a prediction x and its target t: the loss, its derivative, and whether it is right.
struct SquaredError {
  explicit SquaredError(const Options&) noexcept {}
  float Loss(float x, float t) const noexcept { return (x - t) * (x - t); }
  float Slope(float x, float t) const noexcept { return 2 * (x - t); }
};

struct AbsoluteError {
  explicit AbsoluteError(const Options&) noexcept {}
  float Loss(float x, float t) const noexcept { return std::abs(x - t); }
  // 0 where there is none.
  float Slope(float x, float t) const noexcept {
    return static_cast<float>(x > t) - static_cast<float>(x < t);
  }
};

struct Huber {
  explicit Huber(const Options& attributes) noexcept
      : delta(static_cast<float>(attributes.Float("delta"))) {}
  float Loss(float x, float t) const noexcept {
    const float d = std::abs(x - t);
    return d <= delta ? d * d / 2 : delta * (d - delta / 2);
  }
  float Slope(float x, float t) const noexcept { return std::clamp(x - t, -delta, delta); }

  const float delta;
};

// -log(1 - p) is x - log(p), and -log(p) is log(1 + exp(-x)), of which exp(-|x|) cannot overflow.
struct BinaryCrossEntropy {
  explicit BinaryCrossEntropy(const Options& attributes) noexcept
      : pos_weight(static_cast<float>(attributes.Float("pos_weight"))) {}
  float Loss(float x, float t) const noexcept {
    const float log_p = std::log1p(std::exp(-std::abs(x))) + std::max(-x, 0.0f);
    return (1 - t) * x + Factor(t) * log_p;
  }
  float Slope(float x, float t) const noexcept {
    const float e = std::exp(-std::abs(x)), against = (x < 0 ? 1.0f : e) / (1 + e);  // 1 - p
    return (1 - t) - Factor(t) * against;
  }
  bool Correct(float x, float t) const noexcept { return (x > 0) == (t > 0.5f); }
  float Factor(float t) const noexcept { return 1 + (pos_weight - 1) * t; }

  const float pos_weight;
};

template <typename Element>
class ElementLossOp final : public LossOp {
 public:
  ElementLossOp(const OpContext& context, const Options& attributes) noexcept
      : LossOp(context, kit::LossAttributes(attributes)), element_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_ASSIGN_OR_RETURN(const kit::LossInputs found,
                            kit::InferElementLoss(Inferring(inputs, signature), kBinary));
    SetInputs(found, signature);
    return {};
  }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckSampleWeights(call));
    ENGINE_RETURN_IF_ERROR(CheckClasses(call.inputs[1]));
    WithTarget(call, [&](const float* x, const auto* t, int64_t count) {
      Sum(call, count, 1, [&](int64_t begin, int64_t end, Tally* tally) {
        for (int64_t i = begin; i < end; ++i) {
          const double weight = SampleWeight(call, i);
          if (weight == 0) continue;
          const auto target = static_cast<float>(t[i]);
          tally->loss += weight * element_.Loss(x[i], target);
          tally->weights += weight;
          if constexpr (kBinary) tally->correct += element_.Correct(x[i], target) ? weight : 0;
        }
      });
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    float* const dx = call.input_grads[0].f32();
    const bool sum = Accumulates(call, 0);
    WithTarget(call, [&](const float* x, const auto* t, int64_t count) {
      ForElements(count, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const float weight = SampleWeight(call, i);
          const float slope = weight > 0 ? element_.Slope(x[i], static_cast<float>(t[i])) : 0;
          dx[i] = (sum ? dx[i] : 0) + Scale(call) * weight * slope;
        }
      });
    });
    return {};
  }

  static constexpr bool kBinary = std::is_same_v<Element, BinaryCrossEntropy>;

  // body(prediction, target, elements)
  template <typename Body>
  void WithTarget(const OpCall& call, const Body& body) const noexcept {
    const TensorView &x = call.inputs[0], &t = call.inputs[1];
    if (kBinary && t.dtype == DType::kInt32) {
      body(x.f32(), t.i32(), x.count());
    } else {
      body(x.f32(), t.f32(), x.count());
    }
  }

  Status CheckClasses(const TensorView& targets) const noexcept {
    for (int64_t i = 0; targets.dtype == DType::kInt32 && i < targets.count(); ++i) {
      const int32_t target = targets.i32()[i];
      if (target == 0 || target == 1) continue;
      return Status::Error(StatusCode::kBadData,
                           "%s: target %d at position %lld is neither 0 nor 1", name(), target,
                           static_cast<long long>(i));
    }
    return {};
  }

  const Element element_;
};

}  // namespace

const OpFactory kMakeMeanSquaredError = kit::NewOp<ElementLossOp<SquaredError>>;
const OpFactory kMakeMeanAbsoluteError = kit::NewOp<ElementLossOp<AbsoluteError>>;
const OpFactory kMakeHuber = kit::NewOp<ElementLossOp<Huber>>;
const OpFactory kMakeBinaryCrossEntropy = kit::NewOp<ElementLossOp<BinaryCrossEntropy>>;

}  // namespace engine::cpu_ops
