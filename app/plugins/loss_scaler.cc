// The scale of torch.cuda.amp.GradScaler (torch/cuda/amp/grad_scaler.py, _amp_update_scale_): a step
// with a gradient that is not finite does not count, and lowers it; so many that count raise it.
//
// What is observed is one number: 0, or infinite. So its sum over ranks, each of which has seen its
// part of the gradients, says whether any rank has found something; where every rank sees the same
// sums of all gradients, nothing travels. On an accelerator the number is the sum of the squares of
// the mean gradients, which is finite as long as they are.
#include "app/plugins/loss_scaler.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plugin/loss_scale.h"
#include "engine/ext/saved_state.h"
#include "kit/accelerator.h"
#include "kit/create.h"
#include "kit/target_clones.h"

namespace engine::plugins {
namespace {

constexpr int64_t kDeviceMs = 10 * 60 * 1000;
constexpr float kLeast = 1e-9f;  // as of train.loss_scale

// By the bits, without a sign: those of infinity and NaN are the largest.
ENGINE_TARGET_CLONES uint32_t LargestBits(const float* data, int64_t count) noexcept {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(data[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

class LossScaler final : public GradientHookBase,
                         public plugin::LossScaleBase,
                         public SavedStateBase {
 public:
  // `squares` is null where gradients are host memory; otherwise as clip_norm has it.
  LossScaler(Host& host, const Options& options, FlatKernel* squares) noexcept
      : host_(host),
        squares_(squares),
        growth_(static_cast<float>(options.Float("growth_factor"))),
        backoff_(static_cast<float>(options.Float("backoff_factor"))),
        interval_(static_cast<uint64_t>(options.Int("growth_interval"))),
        now_{.scale = static_cast<float>(options.Float("first"))} {}
  ~LossScaler() override {
    if (squares_) host_.device()->Free(sum_);
  }

  HookTraits traits() const noexcept override {
    return {.stage = HookStage::kReduced, .scope = HookScope::kGlobal};
  }
  void* Query(std::string_view id) noexcept override {
    return Offer<plugin::LossScale, SavedState>(id, this);
  }
  Status Setup(uint32_t) noexcept override {
    if (!squares_) return {};
    void* memory = nullptr;
    ENGINE_RETURN_IF_ERROR(host_.device()->Allocate(sizeof(float), &memory));
    sum_ = static_cast<float*>(memory);
    return {};
  }
  Status BeginStep(uint64_t step) noexcept override {
    step_ = step;
    found_ = 0;
    decided_ = added_up_ = false;
    spans_.clear();
    return {};
  }

  Status Observe(const GradientView& gradient) noexcept override {
    if (!squares_) {
      const bool finite = LargestBits(gradient.data, gradient.count) < 0x7f800000u;
      if (!finite) found_ = std::numeric_limits<float>::infinity();
      return {};
    }
    stream_ = gradient.stream;
    try {
      spans_.push_back({.arrays = {gradient.data, gradient.scale}, .count = gradient.count});
    } catch (const std::bad_alloc&) {
      return Status::Error(StatusCode::kResourceExhausted, "no memory for the list of gradients");
    }
    return {};
  }
  Status Apply(const GradientView&) noexcept override { return {}; }
  std::span<float> Observed() noexcept override {
    if (!squares_) return {&found_, 1};
    if (!AddUp().ok()) return {};
    return {sum_, 1};
  }

  float scale() const noexcept override { return now_.scale; }
  uint64_t skipped() const noexcept override { return now_.skipped; }
  Status Decide(Stream* stream) noexcept override {
    if (std::exchange(decided_, true)) return {};
    if (squares_) {
      ENGINE_RETURN_IF_ERROR(AddUp());
      ENGINE_RETURN_IF_ERROR(host_.device()->Copy(&found_, sum_, sizeof(found_), stream));
      ENGINE_RETURN_IF_ERROR(stream->Synchronize(kDeviceMs));
    }
    host_.Metric("loss_scale", now_.scale);
    Move(std::isfinite(found_));
    host_.Metric("skipped_steps", static_cast<double>(now_.skipped));
    if (now_.scale >= kLeast) return {};
    return Status::Error(StatusCode::kConfig,
                         "the gradients of step %llu are not finite, whatever the loss scale: "
                         "lower train.learning_rate.base, or look at the data",
                         static_cast<unsigned long long>(step_));
  }

  uint32_t state_version() const noexcept override { return 1; }
  Status SaveState(void (*sink)(void*, const uint8_t*, uint64_t), void* context) noexcept override {
    sink(context, reinterpret_cast<const uint8_t*>(&now_), sizeof(now_));
    return {};
  }
  Status LoadState(std::span<const uint8_t> state) noexcept override {
    Moving saved;
    if (state.size() == sizeof(saved)) std::memcpy(&saved, state.data(), sizeof(saved));
    if (!std::isfinite(saved.scale) || saved.scale <= 0) {
      return Status::Error(StatusCode::kBadData, "%zu bytes are no loss scale", state.size());
    }
    now_ = saved;
    return {};
  }

 private:
  struct Moving {  // as it is saved
    uint64_t skipped = 0;
    uint64_t good = 0;  // steps since the scale has moved
    double scale = 0;   // a float32
  };

  // Once in a step, as the sum is made in place.
  Status AddUp() noexcept {
    if (std::exchange(added_up_, true)) return {};
    return squares_->Run({.spans = spans_, .shared = sum_, .stream = stream_});
  }

  // In float32, as PyTorch keeps it; it does not grow beyond what is finite.
  void Move(bool counts) noexcept {
    const auto scale = static_cast<float>(now_.scale);
    now_.skipped += counts ? 0 : 1;
    now_.good = counts ? now_.good + 1 : 0;
    if (!counts) now_.scale = scale * backoff_;
    if (now_.good < interval_) return;
    now_.good = 0;
    if (std::isfinite(scale * growth_)) now_.scale = scale * growth_;
  }

  Host& host_;
  FlatKernel* const squares_;
  const float growth_, backoff_;
  const uint64_t interval_;
  Moving now_;
  // Of the step at hand.
  uint64_t step_ = 0;
  float found_ = 0;  // of this rank, then of all
  bool added_up_ = false, decided_ = false;
  // Of an accelerator: what was observed, on which stream; and device memory.
  std::vector<FlatSpan> spans_;
  Stream* stream_ = nullptr;
  float* sum_ = nullptr;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  FlatKernel* squares = nullptr;
  ENGINE_RETURN_IF_ERROR(kit::FindKernel(host, "train.loss_scaling", "sum_of_squares", &squares));
  return kit::Make<LossScaler>(out, host, options, squares);
}

}  // namespace

plugin::PluginChoice LossScalerOf(const LossScaling& scaling) {
  const auto number = [](const char* name, double value) {
    return plugin::OwnedOption{.name = name, .type = OptionType::kFloat, .number = value};
  };
  plugin::PluginChoice choice{
      .entry = {.load = [](const plugin::PluginEntry&) -> Result<CreateFunction> { return Create; },
                .name = "loss_scaling",
                .kind = PluginKind::kHook,
                .version = "1.0.0"},
      .options = {number("first", scaling.first),
                  number("growth_factor", scaling.growth_factor),
                  number("backoff_factor", scaling.backoff_factor),
                  {.name = "growth_interval",
                   .type = OptionType::kInt,
                   .integer = scaling.growth_interval}}};
  return choice;
}

}  // namespace engine::plugins
