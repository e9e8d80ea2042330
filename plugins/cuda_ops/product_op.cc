#include "product_op.h"

#include <utility>

#include "kernels/bias.h"
#include "kernels/channels.h"
#include "kernels/elementwise.h"

namespace engine::cuda_ops {
namespace {

constexpr int64_t kAlignment = 256;

int64_t Aligned(int64_t bytes) noexcept {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void* DataOf(const OpCall& call, int32_t input) noexcept {
  return static_cast<size_t>(input) < call.inputs.size()
             ? call.inputs[static_cast<size_t>(input)].data
             : nullptr;
}

template <typename T>
Status SumColumns(const void* x, int64_t rows, int64_t width, float* partials, float* target,
                  bool sum, const CudaDevice& device, cudaStream_t stream) noexcept {
  return ToStatus(
      LaunchColumnSums(static_cast<const T*>(x), rows, width, partials,
                       ColumnParts(rows, width, device.multiprocessors()), target, sum, stream),
      "the gradient of the bias");
}

}  // namespace

int64_t ProductOp::AlignedBytes(int64_t count) const noexcept {
  return Aligned(count * static_cast<int64_t>(SizeOf(activation())));
}

int64_t ProductOp::SumsBytes(int64_t rows, int64_t units) const noexcept {
  const int64_t parts = ColumnParts(rows, units, device().multiprocessors());
  return Aligned((parts + 1) * units * static_cast<int64_t>(sizeof(float)));
}

Status ProductOp::Project(const OpCall& call, const Layer& layer, Epilogue epilogue, const void* x,
                          void* aux, void* y, cudaStream_t stream) const noexcept {
  MatrixProduct product = Product(layer.rows, layer.units, layer.width, activation());
  product.b_transposed = true;
  product.epilogue = epilogue;
  return Multiply(product,
                  {.a = x,
                   .b = DataOf(call, layer.weight),
                   .d = y,
                   .bias = DataOf(call, layer.bias),
                   .aux = aux},
                  nullptr, stream);
}

Status ProductOp::ParameterGradients(const OpCall& call, const Layer& layer, const void* x,
                                     const void* dy, void* workspace,
                                     cudaStream_t stream) const noexcept {
  const auto weight = static_cast<size_t>(layer.weight), bias = static_cast<size_t>(layer.bias);
  const bool adds = Accumulates(call, layer.bias);
  float* const dbias = WantsGradient(call, bias) ? call.input_grads[bias].f32() : nullptr;
  float* const sums = static_cast<float*>(workspace);
  float* const partials = sums + layer.units;
  if (!WantsGradient(call, weight)) {
    if (dbias == nullptr) return {};
    return WithElement(activation(), [&](auto element) {
      return SumColumns<decltype(element)>(dy, layer.rows, layer.units, partials, dbias, adds,
                                           device(), stream);
    });
  }
  MatrixProduct product = Product(layer.units, layer.width, layer.rows, DType::kFloat32);
  product.a_transposed = true;
  product.sum = Accumulates(call, layer.weight);
  if (dbias != nullptr) product.epilogue = Epilogue::kBiasGradient;
  ENGINE_RETURN_IF_ERROR(Multiply(
      product, {.a = dy, .b = x, .d = call.input_grads[weight].data, .bias = adds ? sums : dbias},
      partials, stream));
  if (dbias == nullptr || !adds) return {};  // the epilogue cannot add
  return Launched(LaunchAddParts(sums, 1, layer.units, layer.units, dbias, true, stream),
                  "the gradient of the bias");
}

Status ProductOp::InputGradient(const OpCall& call, const Layer& layer, const void* dy,
                                void* before, const TensorView& dx, bool sum,
                                cudaStream_t stream) const noexcept {
  MatrixProduct product = Product(layer.rows, layer.width, layer.units, dx.dtype);
  product.sum = sum;
  if (before != nullptr) product.epilogue = Epilogue::kGeluGradient;
  return Multiply(product, {.a = dy, .b = DataOf(call, layer.weight), .d = dx.data, .aux = before},
                  nullptr, stream);
}

MatrixProduct ProductOp::Product(int64_t m, int64_t n, int64_t k, DType result) const noexcept {
  return {.m = m, .n = n, .k = k, .factors = activation(), .result = result};
}

Status ProductOp::Multiply(const MatrixProduct& product, const MatrixOperands& operands,
                           float* partials, cudaStream_t stream) const noexcept {
  // The library's gelu is made for bfloat16: it may take the machine's approximate tanh. Before
  // Hopper it was found to be slower than a kernel of its own (llm.c).
  const bool gelu = product.epilogue == Epilogue::kGeluBias ||
                    product.epilogue == Epilogue::kGeluAuxBias ||
                    product.epilogue == Epilogue::kGeluGradient;
  bool fused = !gelu || (precision() == Precision::kBFloat16 && device().capability() >= 90);
  if (fused && product.epilogue != Epilogue::kNone) {
    ENGINE_ASSIGN_OR_RETURN(fused, blas().Supports(product, operands));
  }
  const Status status =
      fused ? blas().Multiply(product, operands, stream)
            : WithElement(activation(), [&](auto element) {
                return MultiplyInSteps<decltype(element)>(product, operands, partials, stream);
              });
  return status.WithContext("%s", name());
}

template <typename T>
Status ProductOp::MultiplyInSteps(MatrixProduct product, MatrixOperands operands, float* partials,
                                  cudaStream_t stream) const noexcept {
  T* const d = static_cast<T*>(operands.d);
  T* const aux = static_cast<T*>(operands.aux);
  const Epilogue epilogue = std::exchange(product.epilogue, Epilogue::kNone);
  if (epilogue == Epilogue::kGeluBias || epilogue == Epilogue::kGeluAuxBias) {
    T* const before = aux != nullptr ? aux : d;
    operands.d = before;
    product.epilogue = Epilogue::kBias;
    ENGINE_RETURN_IF_ERROR(Multiply(product, operands, nullptr, stream));
    return ToStatus(LaunchFunction<GeluFunction>(static_cast<const T*>(before), d,
                                                 product.m * product.n, stream),
                    "gelu");
  }
  ENGINE_RETURN_IF_ERROR(blas().Multiply(product, operands, stream));
  if (epilogue == Epilogue::kBias) {
    return ToStatus(
        LaunchAddBias(d, static_cast<const T*>(operands.bias), product.m, product.n, stream),
        "adding the bias");
  }
  if (epilogue == Epilogue::kGeluGradient) {
    return ToStatus(
        LaunchFunctionGradient<GeluFunction>(static_cast<const T*>(aux), static_cast<const T*>(d),
                                             d, false, product.m * product.n, stream),
        "the gradient of gelu");
  }
  return SumColumns<T>(operands.a, product.k, product.m, partials,
                       static_cast<float*>(operands.bias), false, device(), stream);
}

}  // namespace engine::cuda_ops
