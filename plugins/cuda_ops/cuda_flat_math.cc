#include "cuda_flat_math.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <span>

#include "cuda_device.h"
#include "kit/accelerator.h"

namespace engine::cuda_ops {
namespace {

template <typename T>
T* Array(const FlatSpan& span, size_t i) noexcept {
  return static_cast<T*>(span.arrays[i]);
}

KernelSpan SpanOf(const FlatSpan& span) noexcept {
  return {.value = Array<float>(span, kit::kValue),
          .gradient = Array<float>(span, kit::kGradient),
          .states = {Array<float>(span, kit::kState0), Array<float>(span, kit::kState1)},
          .value_bf16 = span.arrays[kit::kValueBf16],
          .gradient_scale = Array<float>(span, kit::kGradientScale),
          .count = span.count,
          .learning_rate_scale = span.numbers[kit::kLearningRateScale],
          .weight_decay = span.numbers[kit::kWeightDecay]};
}

// Calls start(table) for tables of all spans but empty ones, as many as it takes; `table` is an empty
// one, `chunk` the elements of a block.
template <typename Table, typename ToSpan, typename Start>
Status ForTables(engine::Array<const FlatSpan> spans, Table table, int64_t chunk,
                 const ToSpan& to_span, const Start& start) noexcept {
  for (const FlatSpan& span : spans) {
    if (span.count == 0) continue;
    if (table.full()) {
      ENGINE_RETURN_IF_ERROR(start(table));
      table.count = table.blocks = 0;
    }
    table.Add(to_span(span), chunk);
  }
  return table.count == 0 ? Status() : start(table);
}

}  // namespace

// In the order of streams: what still reads the partial sums does so before they go.
CudaFlatMath::~CudaFlatMath() {
  device_.Free(partials_);
}

Status CudaFlatMath::Setup() noexcept {
  void* memory = nullptr;
  ENGINE_RETURN_IF_ERROR(device_.Allocate(kMaxPartials * sizeof(double), &memory));
  partials_ = static_cast<double*>(memory);
  return {};
}

FlatKernel* CudaFlatMath::FindKernel(std::string_view name) noexcept {
  for (Kernel& kernel : kernels_) {
    if (kernel.name() == name) return &kernel;
  }
  return nullptr;
}

Status CudaFlatMath::Kernel::Run(const FlatCall& call) noexcept {
  if (call.numbers.size() != numbers_) {
    return Status::Error(
        StatusCode::kInvalidArgument, "kernel %.*s with %zu numbers instead of %zu",
        static_cast<int>(name_.size()), name_.data(), call.numbers.size(), numbers_);
  }
  ENGINE_RETURN_IF_ERROR(math_.device_.Use());
  return (math_.*function_)(call);
}

Status CudaFlatMath::Sgd(const FlatCall& call) noexcept {
  return Update(call, {.momentum = call.numbers[0], .nesterov = call.numbers[1] != 0});
}

Status CudaFlatMath::AdamW(const FlatCall& call) noexcept {
  return Update(call, {.beta1 = call.numbers[0],
                       .beta2 = call.numbers[1],
                       .epsilon = call.numbers[2],
                       .adamw = true});
}

Status CudaFlatMath::Update(const FlatCall& call, const KernelRule& rule) noexcept {
  return ForTables(call.spans, UpdateSpans(), kUpdateBlock, SpanOf, [&](const UpdateSpans& table) {
    return ToStatus(LaunchUpdate(table, rule, &call.scalars->update_step,
                                 &call.scalars->learning_rate, Native(call.stream)),
                    "an update of parameters");
  });
}

// Blocks write their sums one behind the other, whatever kernel they belong to; the last kernel
// adds those up.
Status CudaFlatMath::SumOfSquares(const FlatCall& call) noexcept {
  int64_t total = 0;
  for (const FlatSpan& span : call.spans) total += span.count;
  SquareSpans empty;
  empty.chunk = SquareChunk(total, static_cast<int64_t>(call.spans.size()));
  if (empty.chunk == 0) {
    return Status::Error(StatusCode::kUnsupported, "a sum over %zu spans", call.spans.size());
  }
  const auto square_span = [](const FlatSpan& span) -> SquareSpan {
    return {Array<float>(span, 0), Array<float>(span, 1), span.count};
  };
  int64_t used = 0;
  ENGINE_RETURN_IF_ERROR(
      ForTables(call.spans, empty, empty.chunk, square_span, [&](const SquareSpans& table) {
        const cudaError_t error = LaunchSquares(table, partials_ + used, Native(call.stream));
        used += table.blocks;
        return ToStatus(error, "a sum of squares");
      }));
  return ToStatus(LaunchSum(partials_, used, call.shared, Native(call.stream)), "a sum of squares");
}

// The sum of squares lies at call.shared, on the device: the host does not see it.
Status CudaFlatMath::ClipNorm(const FlatCall& call) noexcept {
  ScaleTable table;
  for (size_t i = 0; i < call.spans.size(); ++i) {
    table.at[table.count++] = Array<float>(call.spans[i], 1);
    if (table.count < kMaxScales && i + 1 < call.spans.size()) continue;
    ENGINE_RETURN_IF_ERROR(
        ToStatus(LaunchScaleToNorm(table, call.shared, call.numbers[0], Native(call.stream)),
                 "scaling to a norm"));
    table.count = 0;
  }
  return {};
}

Status CudaFlatMath::ClipValue(const FlatCall& call) noexcept {
  for (const FlatSpan& span : call.spans) {
    ENGINE_RETURN_IF_ERROR(
        ToStatus(LaunchClampValue(Array<float>(span, 0), span.count, Array<float>(span, 1),
                                  call.numbers[0], Native(call.stream)),
                 "clipping values"));
  }
  return {};
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
