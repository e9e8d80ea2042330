// clip_norm: scales all gradients of a step down together when their common L2 norm exceeds
// max_norm (Pascanu et al., "On the difficulty of training recurrent neural networks", 2013).
#include <cmath>
#include <cstdint>
#include <span>

#include "device_clip_norm.h"
#include "kit/accelerator.h"
#include "kit/create.h"
#include "kit/options.h"
#include "kit/target_clones.h"

namespace engine::clip_norm {
namespace {

// A fixed number of partial sums makes the order of additions, and so the result, the same for
// every instruction set. The square of a float is exact in double precision.
ENGINE_TARGET_CLONES double SumOfSquares(const float* data, int64_t count) noexcept {
  constexpr int64_t kLanes = 32;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const double x = data[i + j];
      lanes[j] += x * x;
    }
  }
  for (int64_t j = 0; i + j < count; ++j) {
    const double x = data[i + j];
    lanes[j] += x * x;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

class ClipNorm final : public GlobalHook {
 public:
  ClipNorm(Host& host, const Options& options) noexcept
      : host_(host), max_norm_(options.Float("max_norm")) {}

  Status BeginStep(uint64_t step) noexcept override {
    step_ = step;
    factor_ = -1;
    sums_are_shared_ = false;
    seen_.clear();
    return {};
  }

  Status Observe(const GradientView& gradient) noexcept override {
    const double scale = *gradient.scale;
    const double square = SumOfSquares(gradient.data, gradient.count) * (scale * scale);
    if (!std::isfinite(square)) {
      return Status::Error(
          StatusCode::kConfig,
          "the gradient of '%.*s' in step %llu has elements that are not finite: the "
          "training diverges; lower the learning rate or look at the data of this step",
          static_cast<int>(gradient.name.size()), gradient.name.data(),
          static_cast<unsigned long long>(step_));
    }
    return See(gradient, square);
  }

  std::span<float> Observed() noexcept override {
    const double sum = SumOfSeen();
    const bool is_large = sum >= kLarge;
    shared_sums_[0] = is_large ? 0 : static_cast<float>(sum);
    shared_sums_[1] = is_large ? static_cast<float>(sum / kLargeBucket) : 0;
    sums_are_shared_ = true;
    return shared_sums_;
  }

  Status Apply(const GradientView& gradient) noexcept override {
    if (factor_ < 0) factor_ = Factor();
    *gradient.scale = static_cast<float>(*gradient.scale * factor_);
    return {};
  }

 private:
  // The square of a norm exceeds the range of float32 long before the norm does. So the first
  // number holds sums below kLarge, the second one larger sums in buckets of kLargeBucket: enough for
  // 2^32 elements of the largest float32.
  static constexpr double kLarge = 0x1p64;
  static constexpr double kLargeBucket = 0x1p160;

  double SumOfSeen() noexcept {
    double sum = 0;
    for (const Seen& span : SeenByPlace()) sum += span.square;
    return sum;
  }

  // The same on all ranks: of sums that were reduced with the same bits, or of all gradients.
  double Factor() noexcept {
    const double sum =
        sums_are_shared_ ? shared_sums_[0] + shared_sums_[1] * kLargeBucket : SumOfSeen();
    const double norm = std::sqrt(sum);
    host_.Metric("gradient_norm", norm);
    return norm > max_norm_ ? max_norm_ / norm : 1;
  }

  Host& host_;
  const double max_norm_;
  float shared_sums_[2] = {};
  bool sums_are_shared_ = false;  // in this step: shared_sums_ is of all ranks
  double factor_ = -1;            // of this step; negative until it is known
  uint64_t step_ = 0;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  FlatKernel *square = nullptr, *scale = nullptr;
  ENGINE_RETURN_IF_ERROR(kit::FindKernel(host, "clip_norm", "sum_of_squares", &square));
  ENGINE_RETURN_IF_ERROR(kit::FindKernel(host, "clip_norm", "clip_norm", &scale));
  if (!scale) return kit::Make<ClipNorm>(out, host, options);
  return kit::Make<DeviceClipNorm>(out, options.Float("max_norm"), *host.device(), *square, *scale);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kHook, "clip_norm", "1.1.0",
    "scales all gradients down together when their common L2 norm exceeds max_norm", Create,
    std::array{kit::FloatOption("max_norm", "", 1e-30, 1e30,
                                "largest L2 norm of all gradients of a step together")});

}  // namespace engine::clip_norm
