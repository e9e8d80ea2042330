// The flat arithmetic of AsyncAccelerator.
#include <algorithm>
#include <cmath>
#include <set>

#include "kit/accelerator.h"
#include "tests/support/async_accelerator.h"
#include "tests/support/elements.h"

namespace engine::test {
namespace {

Status Queue(Stream* stream, AsyncStream::Work work) {
  return static_cast<AsyncStream*>(stream)->Queue(std::move(work));
}

// What a kernel is called with, kept until it runs.
struct Kept {
  explicit Kept(const FlatCall& call)
      : spans(call.spans.begin(), call.spans.end()),
        numbers(call.numbers.begin(), call.numbers.end()),
        shared(call.shared),
        scalars(call.scalars) {}
  std::vector<FlatSpan> spans;
  std::vector<float> numbers;
  float* shared;
  const StepScalars* scalars;
};

float* Array(const FlatSpan& span, size_t i) {
  return OnDevice(static_cast<float*>(span.arrays[i]));
}

void Descend(const FlatSpan& span, const Kept& call, float rate) {
  const float momentum = call.numbers[0];
  const bool nesterov = call.numbers[1] != 0;
  float* const value = Array(span, kit::kValue);
  float* const velocity = Array(span, kit::kState0);
  const float scale = *Array(span, kit::kGradientScale);
  for (int64_t i = 0; i < span.count; ++i) {
    const float g =
        Array(span, kit::kGradient)[i] * scale + span.numbers[kit::kWeightDecay] * value[i];
    if (velocity == nullptr) {
      value[i] -= rate * g;
      continue;
    }
    velocity[i] = momentum * velocity[i] + g;
    value[i] -= rate * (nesterov ? g + momentum * velocity[i] : velocity[i]);
  }
}

void DescendAdaptively(const FlatSpan& span, const Kept& call, float rate) {
  const float beta1 = call.numbers[0], beta2 = call.numbers[1], epsilon = call.numbers[2];
  float* const value = Array(span, kit::kValue);
  float* const m = Array(span, kit::kState0);
  float* const v = Array(span, kit::kState1);
  const float scale = *Array(span, kit::kGradientScale);
  const auto t = static_cast<double>(OnDevice(call.scalars)->update_step);
  const double bias1 = 1 - std::pow(double{beta1}, t);
  const double bias2 = 1 - std::pow(double{beta2}, t);
  for (int64_t i = 0; i < span.count; ++i) {
    const double g = double{Array(span, kit::kGradient)[i]} * scale;
    m[i] = static_cast<float>(beta1 * double{m[i]} + (1 - beta1) * g);
    v[i] = static_cast<float>(beta2 * double{v[i]} + (1 - beta2) * g * g);
    const double step_size = rate / bias1 * m[i];
    const double decayed = value[i] * (1 - double{rate} * span.numbers[kit::kWeightDecay]);
    value[i] = static_cast<float>(decayed - step_size / (std::sqrt(v[i] / bias2) + epsilon));
  }
}

void Update(const Kept& call, bool adamw) {
  for (const FlatSpan& span : call.spans) {
    const float rate =
        OnDevice(call.scalars)->learning_rate * span.numbers[kit::kLearningRateScale];
    adamw ? DescendAdaptively(span, call, rate) : Descend(span, call, rate);
    auto* const rounded = static_cast<uint16_t*>(OnDevice(span.arrays[kit::kValueBf16]));
    for (int64_t i = 0; rounded != nullptr && i < span.count; ++i) {
      rounded[i] = ToBFloat16(Array(span, kit::kValue)[i]);
    }
  }
}

void AddUpSquares(const Kept& call) {
  double total = 0;
  for (const FlatSpan& span : call.spans) {
    const double scale = *Array(span, 1);
    for (int64_t i = 0; i < span.count; ++i) {
      const double x = Array(span, 0)[i] * scale;
      total += x * x;
    }
  }
  *OnDevice(call.shared) = static_cast<float>(total);
}

void ClipNorm(const Kept& call) {
  const float factor = std::min(1.0f, call.numbers[0] / std::sqrt(*OnDevice(call.shared)));
  for (const FlatSpan& span : call.spans) *Array(span, 1) *= factor;
}

void ClipValue(const Kept& call) {
  const float limit = call.numbers[0];
  for (const FlatSpan& span : call.spans) {
    const float factor = *Array(span, 1);
    for (int64_t i = 0; i < span.count; ++i) {
      float& x = Array(span, 0)[i];
      x = std::clamp(x * factor, -limit, limit) / factor;
    }
  }
}

}  // namespace

FlatKernel* AsyncMath::FindKernel(std::string_view name) noexcept {
  for (Kernel& kernel : kernels_) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

Status AsyncMath::Kernel::Run(const FlatCall& call) noexcept {
  const bool updates = name == "sgd" || name == "adamw";
  std::vector<const void*> written;
  std::set<const void*> scales;
  for (const FlatSpan& span : call.spans) {
    scales.insert(span.arrays[1]);
    if (!updates) continue;
    written.push_back(span.arrays[kit::kValue]);
    if (void* const rounded = span.arrays[kit::kValueBf16]) written.push_back(rounded);
  }
  if (name == "clip_norm" && scales.size() != call.spans.size()) {
    return Status::Error(StatusCode::kInvalidArgument, "two spans have one scale");
  }
  if (updates) math.device_.AddWriters(written);
  return Queue(call.stream, [this, updates, written, kept = Kept(call)]() -> Status {
    if (updates) Update(kept, name == "adamw");
    if (name == "sum_of_squares") AddUpSquares(kept);
    if (name == "clip_norm") ClipNorm(kept);
    if (name == "clip_value") ClipValue(kept);
    if (updates) math.device_.RemoveWriters(written);
    return {};
  });
}

Status AsyncMath::FillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                               Stream* stream) noexcept {
  return Queue(stream, [=]() -> Status {
    const float by = *OnDevice(divisor);
    std::fill_n(OnDevice(scales), count, by > 0 ? factor / by : factor);
    return {};
  });
}

Status AsyncMath::Convert(const void* source, DType from, void* target, DType to, int64_t count,
                          Stream* stream) noexcept {
  if (from == to) {
    return device_.Copy(target, source, static_cast<size_t>(count) * SizeOf(from), stream);
  }
  device_.AddWriters({target});
  device_.CountConversion();
  return Queue(stream, [=, this]() -> Status {
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      WriteElement(to, OnDevice(target), i, ReadElement(from, OnDevice(source), i));
    }
    device_.RemoveWriters({target});
    return {};
  });
}

Status AsyncMath::Add(float* target, const float* source, int64_t count, Stream* stream) noexcept {
  return Queue(stream, [=]() -> Status {
    for (int64_t i = 0; i < count; ++i) OnDevice(target)[i] += OnDevice(source)[i];
    return {};
  });
}

}  // namespace engine::test
