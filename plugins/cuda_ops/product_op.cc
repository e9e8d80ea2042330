#include "product_op.h"

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
  return call.inputs[static_cast<size_t>(input)].data;
}

}  // namespace

int64_t ProductOp::AlignedBytes(int64_t count) const noexcept {
  return Aligned(count * static_cast<int64_t>(SizeOf(activation())));
}

int64_t ProductOp::SumsBytes(int64_t rows, int64_t units) const noexcept {
  const int64_t parts = ColumnParts(rows, units, device().multiprocessors());
  return Aligned(parts * units * static_cast<int64_t>(sizeof(float)));
}

Status ProductOp::Project(const OpCall& call, const Layer& layer, const void* x, void* y,
                          cudaStream_t stream) const noexcept {
  MatrixProduct product = Product(layer.rows, layer.units, layer.width, activation());
  product.b_transposed = true;
  MatrixOperands operands = {.a = x, .b = DataOf(call, layer.weight), .d = y};
  if (static_cast<size_t>(layer.bias) >= call.inputs.size()) {
    return Multiply(product, operands, stream);
  }
  product.epilogue = Epilogue::kBias;
  operands.bias = DataOf(call, layer.bias);
  ENGINE_ASSIGN_OR_RETURN(const bool fused, Fuses(product, operands));
  if (fused) return Multiply(product, operands, stream);
  product.epilogue = Epilogue::kNone;
  ENGINE_RETURN_IF_ERROR(Multiply(product, operands, stream));
  return WithElement(activation(), [&](auto element) {
    using T = decltype(element);
    return Launched(LaunchAddBias(static_cast<T*>(y), static_cast<const T*>(operands.bias),
                                  layer.rows, layer.units, stream),
                    "adding the bias");
  });
}

Status ProductOp::ProjectGelu(const OpCall& call, const Layer& layer, const void* x, void* before,
                              void* y, cudaStream_t stream) const noexcept {
  MatrixProduct product = Product(layer.rows, layer.units, layer.width, activation());
  product.b_transposed = true;
  product.epilogue = before != nullptr ? Epilogue::kGeluAuxBias : Epilogue::kGeluBias;
  const MatrixOperands operands = {.a = x,
                                   .b = DataOf(call, layer.weight),
                                   .d = y,
                                   .bias = DataOf(call, layer.bias),
                                   .aux = before};
  ENGINE_ASSIGN_OR_RETURN(const bool fused, Fuses(product, operands));
  if (fused) return Multiply(product, operands, stream);
  if (before == nullptr) before = y;
  ENGINE_RETURN_IF_ERROR(Project(call, layer, x, before, stream));
  return WithElement(activation(), [&](auto element) {
    using T = decltype(element);
    return Launched(LaunchFunction<GeluFunction>(static_cast<const T*>(before), static_cast<T*>(y),
                                                 layer.rows * layer.units, stream),
                    "gelu");
  });
}

Status ProductOp::ParameterGradients(const OpCall& call, const Layer& layer, const void* x,
                                     const void* dy, void* workspace,
                                     cudaStream_t stream) const noexcept {
  const auto weight = static_cast<size_t>(layer.weight), bias = static_cast<size_t>(layer.bias);
  const bool wants_bias = WantsGradient(call, bias), adds_bias = Accumulates(call, layer.bias);
  float* const partials = static_cast<float*>(workspace);
  float* const dbias = wants_bias ? call.input_grads[bias].f32() : nullptr;
  bool fused = false;
  if (WantsGradient(call, weight)) {
    MatrixProduct product = Product(layer.units, layer.width, layer.rows, DType::kFloat32);
    product.a_transposed = true;
    product.sum = Accumulates(call, layer.weight);
    MatrixOperands operands = {.a = dy, .b = x, .d = call.input_grads[weight].data};
    if (wants_bias) {
      product.epilogue = Epilogue::kBiasGradient;
      operands.bias = adds_bias ? partials : dbias;  // the epilogue cannot add
      ENGINE_ASSIGN_OR_RETURN(fused, Fuses(product, operands));
      if (!fused) product.epilogue = Epilogue::kNone;
    }
    ENGINE_RETURN_IF_ERROR(Multiply(product, operands, stream));
  }
  if (!wants_bias || (fused && !adds_bias)) return {};
  if (fused) {
    return Launched(LaunchAddParts(partials, 1, layer.units, layer.units, dbias, true, stream),
                    "the gradient of the bias");
  }
  const int64_t parts = ColumnParts(layer.rows, layer.units, device().multiprocessors());
  return WithElement(activation(), [&](auto element) {
    using T = decltype(element);
    return Launched(LaunchColumnSums(static_cast<const T*>(dy), layer.rows, layer.units, partials,
                                     parts, dbias, adds_bias, stream),
                    "the gradient of the bias");
  });
}

Status ProductOp::InputGradient(const OpCall& call, const Layer& layer, const void* dy, void* dx,
                                DType dx_type, bool sum, cudaStream_t stream) const noexcept {
  MatrixProduct product = Product(layer.rows, layer.width, layer.units, dx_type);
  product.sum = sum;
  return Multiply(product, {.a = dy, .b = DataOf(call, layer.weight), .d = dx}, stream);
}

Status ProductOp::InputGradientOfGelu(const OpCall& call, const Layer& layer, const void* dy,
                                      void* before, void* dbefore,
                                      cudaStream_t stream) const noexcept {
  MatrixProduct product = Product(layer.rows, layer.width, layer.units, activation());
  product.epilogue = Epilogue::kGeluGradient;
  const MatrixOperands operands = {
      .a = dy, .b = DataOf(call, layer.weight), .d = dbefore, .aux = before};
  ENGINE_ASSIGN_OR_RETURN(const bool fused, Fuses(product, operands));
  if (fused) return Multiply(product, operands, stream);
  ENGINE_RETURN_IF_ERROR(InputGradient(call, layer, dy, dbefore, activation(), false, stream));
  return WithElement(activation(), [&](auto element) {
    using T = decltype(element);
    T* const target = static_cast<T*>(dbefore);
    return Launched(LaunchFunctionGradient<GeluFunction>(static_cast<const T*>(before),
                                                         static_cast<const T*>(target), target,
                                                         false, layer.rows * layer.width, stream),
                    "the gradient of gelu");
  });
}

MatrixProduct ProductOp::Product(int64_t m, int64_t n, int64_t k, DType result) const noexcept {
  return {.m = m, .n = n, .k = k, .factors = activation(), .result = result};
}

Result<bool> ProductOp::Fuses(const MatrixProduct& product,
                              const MatrixOperands& operands) const noexcept {
  // The library's gelu is made for bfloat16: it may take the machine's approximate tanh. Before
  // Hopper it was found to be slower than a kernel of its own (llm.c).
  const bool fuses_gelu = precision() == Precision::kBFloat16 && device().capability() >= 90;
  const bool gelu = product.epilogue == Epilogue::kGeluBias ||
                    product.epilogue == Epilogue::kGeluAuxBias ||
                    product.epilogue == Epilogue::kGeluGradient;
  if (gelu && !fuses_gelu) return false;
  return blas().Supports(product, operands);
}

Status ProductOp::Multiply(const MatrixProduct& product, const MatrixOperands& operands,
                           cudaStream_t stream) const noexcept {
  return blas().Multiply(product, operands, stream).WithContext("%s", name());
}

}  // namespace engine::cuda_ops
