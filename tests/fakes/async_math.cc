// The flat arithmetic of AsyncAccelerator.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "tests/fakes/async_accelerator.h"
#include "tests/fakes/bfloat16.h"

namespace engine::test {
namespace {

Status Queue(Stream* stream, AsyncStream::Work work) {
  return static_cast<AsyncStream*>(stream)->Queue(std::move(work));
}

void Descend(const UpdateSpan& span, const UpdateRule& rule, float rate, float* value,
             const float* gradient, float* velocity) {
  const float scale = *OnDevice(span.gradient_scale);
  for (int64_t i = 0; i < span.count; ++i) {
    const float g = gradient[i] * scale + span.weight_decay * value[i];
    if (velocity == nullptr) {
      value[i] -= rate * g;
      continue;
    }
    velocity[i] = rule.momentum * velocity[i] + g;
    value[i] -= rate * (rule.nesterov != 0 ? g + rule.momentum * velocity[i] : velocity[i]);
  }
}

void DescendAdaptively(const UpdateSpan& span, const UpdateRule& rule, float rate, uint64_t step,
                       float* value, const float* gradient) {
  const float scale = *OnDevice(span.gradient_scale);
  float* const m = OnDevice(span.states[0]);
  float* const v = OnDevice(span.states[1]);
  const auto t = static_cast<double>(step);
  const double bias1 = 1 - std::pow(double{rule.beta1}, t);
  const double bias2 = 1 - std::pow(double{rule.beta2}, t);
  for (int64_t i = 0; i < span.count; ++i) {
    const double g = double{gradient[i]} * scale;
    m[i] = static_cast<float>(rule.beta1 * double{m[i]} + (1 - rule.beta1) * g);
    v[i] = static_cast<float>(rule.beta2 * double{v[i]} + (1 - rule.beta2) * g * g);
    const double step_size = rate / bias1 * m[i];
    const double decayed = value[i] * (1 - double{rate} * span.weight_decay);
    value[i] = static_cast<float>(decayed - step_size / (std::sqrt(v[i] / bias2) + rule.epsilon));
  }
}

void UpdateSpanOnDevice(const UpdateSpan& span, const UpdateRule& rule,
                        const StepScalars& scalars) {
  float* const value = OnDevice(span.value);
  const float* const gradient = OnDevice(span.gradient);
  const float rate = scalars.learning_rate * span.learning_rate_scale;
  if (rule.formula == UpdateFormula::kSgd) {
    Descend(span, rule, rate, value, gradient, OnDevice(span.states[0]));
  } else {
    DescendAdaptively(span, rule, rate, scalars.update_step, value, gradient);
  }
  auto* const rounded = static_cast<uint16_t*>(OnDevice(span.value_bf16));
  for (int64_t i = 0; rounded != nullptr && i < span.count; ++i) {
    rounded[i] = ToBFloat16(value[i]);
  }
}

}  // namespace

Status AsyncMath::Update(std::span<const UpdateSpan> spans, const UpdateRule& rule,
                         const StepScalars* scalars, Stream* stream) noexcept {
  std::vector<const void*> written;
  for (const UpdateSpan& span : spans) {
    written.push_back(span.value);
    if (span.value_bf16 != nullptr) written.push_back(span.value_bf16);
  }
  device_.AddWriters(written);
  const std::vector<UpdateSpan> kept(spans.begin(), spans.end());
  return Queue(stream, [this, written, kept, rule, scalars]() -> Status {
    for (const UpdateSpan& span : kept) UpdateSpanOnDevice(span, rule, *OnDevice(scalars));
    device_.RemoveWriters(written);
    return {};
  });
}

Status AsyncMath::SumOfSquares(std::span<const ScaledSpan> spans, float* sum,
                               Stream* stream) noexcept {
  const std::vector<ScaledSpan> kept(spans.begin(), spans.end());
  return Queue(stream, [kept, sum]() -> Status {
    double total = 0;
    for (const ScaledSpan& span : kept) {
      const double scale = *OnDevice(span.scale);
      for (int64_t i = 0; i < span.count; ++i) {
        const double x = OnDevice(span.data)[i] * scale;
        total += x * x;
      }
    }
    *OnDevice(sum) = static_cast<float>(total);
    return {};
  });
}

Status AsyncMath::ScaleToNorm(std::span<const ScaledSpan> spans, const float* square,
                              float max_norm, Stream* stream) noexcept {
  const std::vector<ScaledSpan> kept(spans.begin(), spans.end());
  std::set<const float*> scales;
  for (const ScaledSpan& span : kept) scales.insert(span.scale);
  if (scales.size() != kept.size()) {
    return Status::Error(StatusCode::kInvalidArgument, "two spans have one scale");
  }
  return Queue(stream, [kept, square, max_norm]() -> Status {
    const float factor = std::min(1.0f, max_norm / std::sqrt(*OnDevice(square)));
    for (const ScaledSpan& span : kept) *OnDevice(span.scale) *= factor;
    return {};
  });
}

Status AsyncMath::ClampValue(float* data, int64_t count, const float* scale, float limit,
                             Stream* stream) noexcept {
  return Queue(stream, [=]() -> Status {
    const float factor = *OnDevice(scale);
    for (int64_t i = 0; i < count; ++i) {
      float& x = OnDevice(data)[i];
      x = std::clamp(x * factor, -limit, limit) / factor;
    }
    return {};
  });
}

Status AsyncMath::FillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                               Stream* stream) noexcept {
  return Queue(stream, [=]() -> Status {
    const float quotient = factor / std::max(*OnDevice(divisor), 1.0f);
    std::fill_n(OnDevice(scales), count, quotient);
    return {};
  });
}

Status AsyncMath::Convert(const void* source, DType from, void* target, DType to, int64_t count,
                          Stream* stream) noexcept {
  if (from == to) {
    return device_.Copy(target, source, static_cast<size_t>(count) * SizeOf(from), stream);
  }
  const bool rounds = from == DType::kFloat32 && to == DType::kBFloat16;
  if (!rounds && !(from == DType::kBFloat16 && to == DType::kFloat32)) {
    return Status::Error(StatusCode::kUnsupported, "no conversion from %s to %s", Name(from),
                         Name(to));
  }
  device_.AddWriters({target});
  device_.CountConversion();
  return Queue(stream, [=, this]() -> Status {
    for (int64_t i = 0; i < count; ++i) {
      if (rounds) {
        static_cast<uint16_t*>(OnDevice(target))[i] =
            ToBFloat16(static_cast<const float*>(OnDevice(source))[i]);
      } else {
        static_cast<float*>(OnDevice(target))[i] =
            FromBFloat16(static_cast<const uint16_t*>(OnDevice(source))[i]);
      }
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
