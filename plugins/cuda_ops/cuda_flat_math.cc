#include "cuda_flat_math.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda_device.h"
#include "cuda_error.h"
#include "kernels/flat_math.h"

namespace engine::cuda_ops {
namespace {

cudaStream_t Native(Stream* stream) noexcept {
  return stream == nullptr ? nullptr : static_cast<cudaStream_t>(stream->native());
}

KernelSpan SpanOf(const UpdateSpan& span) noexcept {
  return {.value = span.value,
          .gradient = span.gradient,
          .states = {span.states[0], span.states[1]},
          .value_bf16 = span.value_bf16,
          .gradient_scale = span.gradient_scale,
          .count = span.count,
          .learning_rate_scale = span.learning_rate_scale,
          .weight_decay = span.weight_decay};
}

}  // namespace

CudaFlatMath::~CudaFlatMath() {
  device_.Free(partials_);
}

Status CudaFlatMath::Setup() noexcept {
  void* memory = nullptr;
  ENGINE_RETURN_IF_ERROR(device_.Allocate(kMaxPartials * sizeof(double), &memory));
  partials_ = static_cast<double*>(memory);
  return {};
}

// One kernel for as many spans as its parameters have room for.
Status CudaFlatMath::Update(std::span<const UpdateSpan> spans, const UpdateRule& rule,
                            const StepScalars* scalars, Stream* stream) noexcept {
  ENGINE_RETURN_IF_ERROR(device_.Use());
  const KernelRule kernel_rule{.beta1 = rule.beta1,
                               .beta2 = rule.beta2,
                               .epsilon = rule.epsilon,
                               .momentum = rule.momentum,
                               .adamw = rule.formula == UpdateFormula::kAdamW,
                               .nesterov = rule.nesterov != 0};
  KernelSpans table;
  int32_t blocks = 0;
  const auto launch = [&]() -> Status {
    if (blocks == 0) return {};
    const cudaError_t error = LaunchUpdate(table, blocks, kernel_rule, &scalars->update_step,
                                           &scalars->learning_rate, Native(stream));
    table.count = 0;
    blocks = 0;
    return ToStatus(error, "an update of parameters");
  };
  for (const UpdateSpan& span : spans) {
    if (span.count == 0) continue;
    if (table.count == kMaxUpdateSpans) ENGINE_RETURN_IF_ERROR(launch());
    table.at[table.count] = SpanOf(span);
    table.first_block[table.count] = blocks;
    ++table.count;
    blocks += static_cast<int32_t>((span.count + kUpdateBlock - 1) / kUpdateBlock);
  }
  return launch();
}

// Blocks write their sums one behind the other, whatever kernel they belong to; the last kernel
// adds those up.
Status CudaFlatMath::SumOfSquares(std::span<const ScaledSpan> spans, float* sum,
                                  Stream* stream) noexcept {
  ENGINE_RETURN_IF_ERROR(device_.Use());
  int64_t total = 0;
  for (const ScaledSpan& span : spans) total += span.count;
  const int64_t chunk = SquareChunk(total, static_cast<int64_t>(spans.size()));
  if (chunk == 0) {
    return Status::Error(StatusCode::kUnsupported, "a sum over %zu spans", spans.size());
  }
  int64_t used = 0;
  SquareSpans table;
  table.chunk = chunk;
  const auto launch = [&]() -> Status {
    if (table.count == 0) return {};
    const cudaError_t error = LaunchSquares(table, partials_ + used, Native(stream));
    used += table.blocks;
    table.count = table.blocks = 0;
    return ToStatus(error, "a sum of squares");
  };
  for (const ScaledSpan& span : spans) {
    if (span.count == 0) continue;
    if (table.count == kMaxSquareSpans) ENGINE_RETURN_IF_ERROR(launch());
    table.at[table.count] = {span.data, span.scale, span.count};
    table.first_block[table.count++] = table.blocks;
    table.blocks += static_cast<int32_t>((span.count + chunk - 1) / chunk);
  }
  ENGINE_RETURN_IF_ERROR(launch());
  return ToStatus(LaunchSum(partials_, used, sum, Native(stream)), "a sum of squares");
}

Status CudaFlatMath::ScaleToNorm(std::span<const ScaledSpan> spans, const float* square,
                                 float max_norm, Stream* stream) noexcept {
  ENGINE_RETURN_IF_ERROR(device_.Use());
  ScaleTable table;
  for (size_t i = 0; i < spans.size(); ++i) {
    table.at[table.count++] = spans[i].scale;
    if (table.count < kMaxScales && i + 1 < spans.size()) continue;
    ENGINE_RETURN_IF_ERROR(
        ToStatus(LaunchScaleToNorm(table, square, max_norm, Native(stream)), "scaling to a norm"));
    table.count = 0;
  }
  return {};
}

Status CudaFlatMath::ClampValue(float* data, int64_t count, const float* scale, float limit,
                                Stream* stream) noexcept {
  ENGINE_RETURN_IF_ERROR(device_.Use());
  return ToStatus(LaunchClampValue(data, count, scale, limit, Native(stream)), "clipping values");
}

Status CudaFlatMath::FillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                                  Stream* stream) noexcept {
  ENGINE_RETURN_IF_ERROR(device_.Use());
  return ToStatus(LaunchFillQuotient(divisor, factor, scales, count, Native(stream)),
                  "scales of gradients");
}

Status CudaFlatMath::Convert(const void* source, DType from, void* target, DType to, int64_t count,
                             Stream* stream) noexcept {
  ENGINE_RETURN_IF_ERROR(device_.Use());
  const auto convert = [&](auto source_element, auto target_element) {
    return ToStatus(
        LaunchConvert(static_cast<const decltype(source_element)*>(source),
                      static_cast<decltype(target_element)*>(target), count, Native(stream)),
        "converting elements");
  };
  if (from == to) {
    return device_.Copy(target, source, static_cast<size_t>(count) * SizeOf(from), stream);
  }
  if (from == DType::kFloat32 && to == DType::kBFloat16) return convert(float{}, __nv_bfloat16{});
  if (from == DType::kBFloat16 && to == DType::kFloat32) return convert(__nv_bfloat16{}, float{});
  if (from == DType::kFloat32 && to == DType::kFloat16) return convert(float{}, __half{});
  if (from == DType::kFloat16 && to == DType::kFloat32) return convert(__half{}, float{});
  return Status::Error(StatusCode::kUnsupported, "no conversion from %s to %s", Name(from),
                       Name(to));
}

Status CudaFlatMath::Add(float* target, const float* source, int64_t count,
                         Stream* stream) noexcept {
  ENGINE_RETURN_IF_ERROR(device_.Use());
  return ToStatus(LaunchAdd(target, source, count, Native(stream)), "a sum");
}

}  // namespace engine::cuda_ops
