// linear: y = x W^T + b. tied_linear: the same with a second data input as W and no b. mlp:
// y = proj(gelu(fc(x))), where fc and proj are such layers and y is as wide as x: one op, as the
// product that gives the gradient of gelu's value can take it through gelu.
//
// In bfloat16 an x in float32 (the batch itself) is rounded first; the copy is saved.
#include <algorithm>
#include <functional>
#include <utility>

#include "blas.h"
#include "cuda_op.h"
#include "kernels/channels.h"
#include "kernels/elementwise.h"
#include "kernels/flat_math.h"

namespace engine::cuda_ops {
namespace {

// What all have in common: linear layers with x (rows, width), W (units, width) and b (units) as
// products, with what can be done in their epilogues done there.
class ProductOp : public CudaOp {
 protected:
  using CudaOp::CudaOp;

  struct Layer {
    int64_t rows, width, units;
    int32_t weight, bias;     // which inputs they are; an op may have no input `bias`
    bool transposed = false;  // W is (width, units)
  };

  // Of so many activations.
  int64_t ActivationBytes(int64_t count) const noexcept {
    return AlignedBytes(count * static_cast<int64_t>(SizeOf(activation())));
  }
  // Of the workspace of ParameterGradients.
  int64_t SumsBytes(int64_t rows, int64_t units) const noexcept {
    return AlignedBytes((Parts(rows, units) + 1) * units * static_cast<int64_t>(sizeof(float)));
  }

  // y = what `epilogue` makes of x W^T.
  Status Project(const OpCall& call, const Layer& layer, Epilogue epilogue, const void* x,
                 void* aux, void* y, cudaStream_t stream) const noexcept {
    MatrixProduct product = Product(layer.rows, layer.units, layer.width, activation());
    product.b_transposed = !layer.transposed;
    product.epilogue = epilogue;
    return Multiply(product,
                    {.a = x,
                     .b = DataOf(call, layer.weight),
                     .d = y,
                     .bias = DataOf(call, layer.bias),
                     .aux = aux},
                    nullptr, stream);
  }

  // Of the weight and the bias, as far as they are wanted. Workspace: sums (units), then the partial
  // sums (parts, units) of which they are made.
  Status ParameterGradients(const OpCall& call, const Layer& layer, const void* x, const void* dy,
                            void* workspace, cudaStream_t stream) const noexcept {
    const auto weight = static_cast<size_t>(layer.weight), bias = static_cast<size_t>(layer.bias);
    const bool adds = Accumulates(call, layer.bias);
    float* const dbias = WantsGradient(call, bias) ? call.input_grads[bias].f32() : nullptr;
    float* const sums = static_cast<float*>(workspace);
    float* const partials = sums + layer.units;
    if (!WantsGradient(call, weight)) {
      if (dbias == nullptr) return {};
      return SumRows(dy, layer.rows, layer.units, partials, dbias, adds, stream);
    }
    const bool t = layer.transposed;
    MatrixProduct product = t ? Product(layer.width, layer.units, layer.rows, DType::kFloat32)
                              : Product(layer.units, layer.width, layer.rows, DType::kFloat32);
    product.a_transposed = true;
    product.sum = Accumulates(call, layer.weight);
    if (t) {  // the epilogue is for the factor that comes first
      ENGINE_RETURN_IF_ERROR(Multiply(
          product, {.a = x, .b = dy, .d = call.input_grads[weight].data}, nullptr, stream));
      if (dbias == nullptr) return {};
      return SumRows(dy, layer.rows, layer.units, partials, dbias, adds, stream);
    }
    if (dbias != nullptr) product.epilogue = Epilogue::kBiasGradient;
    const MatrixOperands operands = {
        .a = dy, .b = x, .d = call.input_grads[weight].data, .bias = adds ? sums : dbias};
    ENGINE_RETURN_IF_ERROR(Multiply(product, operands, partials, stream));
    if (dbias == nullptr || !adds) return {};  // the epilogue cannot add
    return Launched(LaunchAddParts(sums, 1, layer.units, layer.units, dbias, true, stream),
                    "the gradient of the bias");
  }

  // dx = dy W, added to what is there when `sum`; unless `before` is null, times gelu'(before).
  Status InputGradient(const OpCall& call, const Layer& layer, const void* dy, void* before,
                       const TensorView& dx, bool sum, cudaStream_t stream) const noexcept {
    MatrixProduct product = Product(layer.rows, layer.width, layer.units, dx.dtype);
    product.b_transposed = layer.transposed;
    product.sum = sum;
    if (before != nullptr) product.epilogue = Epilogue::kGeluGradient;
    const MatrixOperands operands = {
        .a = dy, .b = DataOf(call, layer.weight), .d = dx.data, .aux = before};
    return Multiply(product, operands, nullptr, stream);
  }

 private:
  static void* DataOf(const OpCall& call, int32_t input) noexcept {
    const auto i = static_cast<size_t>(input);
    return i < call.inputs.size() ? call.inputs[i].data : nullptr;
  }
  int64_t Parts(int64_t rows, int64_t units) const noexcept {
    return ColumnParts(rows, units, device().multiprocessors());
  }
  MatrixProduct Product(int64_t m, int64_t n, int64_t k, DType result) const noexcept {
    return {.m = m, .n = n, .k = k, .factors = activation(), .result = result};
  }

  Status SumRows(const void* x, int64_t rows, int64_t width, float* partials, float* target,
                 bool sum, cudaStream_t stream) const noexcept {
    return WithElement(activation(), [&]<typename T>(T) {
      return Launched(LaunchColumnSums(static_cast<const T*>(x), rows, width, partials,
                                       Parts(rows, width), target, sum, stream),
                      "the gradient of the bias");
    });
  }

  // `partials` for the sums of kBiasGradient.
  Status Multiply(const MatrixProduct& product, const MatrixOperands& operands, float* partials,
                  cudaStream_t stream) const noexcept {
    const auto in_steps = [&](const MatrixOperands& scratch) {
      return WithElement(activation(), [&]<typename T>(T) {
        return MultiplyInSteps<T>(product, scratch, partials, stream);
      });
    };
    // The library's gelu is made for bfloat16: it may take the machine's approximate tanh.
    const bool gelu = product.epilogue == Epilogue::kGeluBias ||
                      product.epilogue == Epilogue::kGeluAuxBias ||
                      product.epilogue == Epilogue::kGeluGradient;
    bool fused = !gelu || precision() == Precision::kBFloat16;
    if (fused && product.epilogue != Epilogue::kNone) {
      ENGINE_ASSIGN_OR_RETURN(fused, blas().Fuses(product, operands, stream, std::cref(in_steps)));
    }
    if (!fused) return in_steps(operands);
    return blas().Multiply(product, operands, stream).WithContext("%s", name());
  }

  // The product, and then what its epilogue is to do.
  template <typename T>
  Status MultiplyInSteps(MatrixProduct product, MatrixOperands operands, float* partials,
                         cudaStream_t stream) const noexcept {
    T* const d = static_cast<T*>(operands.d);
    const T* const aux = static_cast<const T*>(operands.aux);
    const T* const bias = static_cast<const T*>(operands.bias);
    const int64_t count = product.m * product.n;
    const Epilogue epilogue = std::exchange(product.epilogue, Epilogue::kNone);
    if (epilogue == Epilogue::kGeluBias || epilogue == Epilogue::kGeluAuxBias) {
      if (aux != nullptr) operands.d = operands.aux;
      product.epilogue = Epilogue::kBias;
      ENGINE_RETURN_IF_ERROR(Multiply(product, operands, nullptr, stream));
      return Launched(
          LaunchFunction<GeluFunction>(static_cast<const T*>(operands.d), d, count, stream),
          "gelu");
    }
    ENGINE_RETURN_IF_ERROR(Multiply(product, operands, nullptr, stream));
    if (epilogue == Epilogue::kBias) {
      return Launched(LaunchAddBias(d, bias, product.m, product.n, stream), "adding the bias");
    }
    if (epilogue == Epilogue::kGeluGradient) {
      return Launched(LaunchFunctionGradient<GeluFunction>(aux, d, d, false, count, stream),
                      "the gradient of gelu");
    }
    return SumRows(operands.a, product.k, product.m, partials, static_cast<float*>(operands.bias),
                   false, stream);
  }
};

// Inputs are x (..., K), weight (N, K) and, maybe, bias (N).
class LinearOp : public ProductOp {
 public:
  using ProductOp::ProductOp;

 protected:
  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  // What all have in common once the number of units is known.
  void Describe(const TensorSpec& x, int64_t units, bool transposed,
                OpSignature* signature) noexcept {
    transposed_ = transposed;
    rounds_x_ = !IsActivation(x);
    const int64_t rows = x.shape.Count(0, -1);
    signature->saved_bytes = rounds_x_ ? ActivationBytes(rows * x.shape[-1]) : 0;
    signature->workspace_bytes = std::max(signature->saved_bytes, SumsBytes(rows, units));
    if (rounds_x_) signature->backward_reads_inputs = 1u << kWeight;
  }

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layer layer = LayerOf(call);
    if (layer.rows == 0) return {};
    const void* x = nullptr;
    ENGINE_RETURN_IF_ERROR(RoundX(call, layer, stream, &x));
    const Epilogue epilogue = call.inputs.size() > kBias ? Epilogue::kBias : Epilogue::kNone;
    return Project(call, layer, epilogue, x, nullptr, call.outputs[0].data, stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layer layer = LayerOf(call);
    if (layer.rows == 0) {
      ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
      return ZeroGradient(call, kBias, stream);
    }
    const void* const dy = call.output_grads[0].data;
    const void* const x = rounds_x_ ? call.saved : call.inputs[kX].data;
    ENGINE_RETURN_IF_ERROR(ParameterGradients(call, layer, x, dy, call.workspace, stream));
    if (!WantsGradient(call, kX)) return {};
    return InputGradient(call, layer, dy, nullptr, call.input_grads[kX], Accumulates(call, kX),
                         stream);
  }

 private:
  Layer LayerOf(const OpCall& call) const noexcept {
    const Shape& shape = call.inputs[kX].shape;
    return {shape.Count(0, -1),
            shape[-1],
            call.inputs[kWeight].shape[transposed_ ? 1 : 0],
            kWeight,
            kBias,
            transposed_};
  }

  // x as a factor. In evaluation nothing is saved.
  Status RoundX(const OpCall& call, const Layer& layer, cudaStream_t stream,
                const void** out) const noexcept {
    *out = call.inputs[kX].data;
    if (!rounds_x_) return {};
    void* const rounded = call.saved != nullptr ? call.saved : call.workspace;
    *out = rounded;
    return Launched(
        LaunchConvert(As<const float>(call.inputs[kX]), static_cast<__nv_bfloat16*>(rounded),
                      layer.rows * layer.width, stream),
        "rounding the input");
  }

  bool rounds_x_ = false, transposed_ = false;
};

class OwnedLinearOp final : public LinearOp {
 public:
  OwnedLinearOp(const OpContext& context, const Options& attributes) noexcept
      : LinearOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferLinear(Inferring(inputs, signature), given_));
    Describe(inputs[kX], given_.units, given_.transposed, signature);
    return {};
  }

 private:
  const kit::LinearAttributes given_;
};

class TiedLinearOp final : public LinearOp {
 public:
  using LinearOp::LinearOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferTiedLinear(Inferring(inputs, signature)));
    Describe(inputs[kX], inputs[kWeight].shape[0], false, signature);
    return {};
  }
};

// Saved: what gelu is applied to, and its value, both (rows, units).
class MlpOp final : public ProductOp {
 public:
  MlpOp(const OpContext& context, const Options& attributes) noexcept
      : ProductOp(context),
        units_(attributes.Int("units")),
        fc_scale_(static_cast<float>(attributes.Float("init_scale"))),
        proj_scale_(static_cast<float>(attributes.Float("proj_init_scale"))) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference op = Inferring(inputs, signature);
    ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
    const Shape& x = inputs[kX].shape;
    if (!op.IsActivation(kX) || x.ndim < 2 || x[-1] < 1) {
      return op.ActivationError(kX, " (..., K), at least two dimensions, K >= 1");
    }
    const int64_t rows = x.Count(0, -1), width = x[-1];
    op.AddOutput(x);
    AddLayer(op, "fc.weight", "fc.bias", Shape{units_, width}, fc_scale_);
    AddLayer(op, "proj.weight", "proj.bias", Shape{width, units_}, proj_scale_);
    signature->saved_bytes = 2 * HiddenBytes(rows);
    signature->workspace_bytes =
        HiddenBytes(rows) + std::max(SumsBytes(rows, units_), SumsBytes(rows, width));
    return op.Gradients(0b11111, 1u << kX | 1u << kFc | 1u << kProj);
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layer fc = Fc(call);
    if (fc.rows == 0) return {};
    const bool saves = call.saved != nullptr;
    void* const hidden = saves ? Behind(call.saved, fc) : call.workspace;
    ENGINE_RETURN_IF_ERROR(Project(call, fc, saves ? Epilogue::kGeluAuxBias : Epilogue::kGeluBias,
                                   call.inputs[kX].data, call.saved, hidden, stream));
    return Project(call, Proj(fc), Epilogue::kBias, hidden, nullptr, call.outputs[0].data, stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layer fc = Fc(call), proj = Proj(fc);
    for (int32_t i = kFc; fc.rows == 0 && i <= kProj + 1; ++i) {
      ENGINE_RETURN_IF_ERROR(ZeroGradient(call, i, stream));
    }
    if (fc.rows == 0) return {};
    const void* const dy = call.output_grads[0].data;
    void* const sums = Behind(call.workspace, fc);
    ENGINE_RETURN_IF_ERROR(
        ParameterGradients(call, proj, Behind(call.saved, fc), dy, sums, stream));
    if (!WantsGradient(call, kX) && !WantsGradient(call, kFc) && !WantsGradient(call, kFc + 1)) {
      return {};
    }
    const TensorView dbefore{call.workspace, {}, activation()};
    ENGINE_RETURN_IF_ERROR(InputGradient(call, proj, dy, call.saved, dbefore, false, stream));
    ENGINE_RETURN_IF_ERROR(
        ParameterGradients(call, fc, call.inputs[kX].data, dbefore.data, sums, stream));
    if (!WantsGradient(call, kX)) return {};
    return InputGradient(call, fc, dbefore.data, nullptr, call.input_grads[kX],
                         Accumulates(call, kX), stream);
  }

  static constexpr int32_t kX = 0, kFc = 1, kProj = 3;  // each weight is followed by its bias

  Layer Fc(const OpCall& call) const noexcept {
    const Shape& shape = call.inputs[kX].shape;
    return {shape.Count(0, -1), shape[-1], units_, kFc, kFc + 1};
  }
  static Layer Proj(const Layer& fc) noexcept {
    return {fc.rows, fc.units, fc.width, kProj, kProj + 1};
  }

  int64_t HiddenBytes(int64_t rows) const noexcept { return ActivationBytes(rows * units_); }
  void* Behind(void* memory, const Layer& fc) const noexcept {
    return static_cast<char*>(memory) + HiddenBytes(fc.rows);
  }

  static void AddLayer(const kit::Inference& op, const FixedString<32>& weight,
                       const FixedString<32>& bias, const Shape& shape, float scale) noexcept {
    ParameterSpec& matrix = op.AddParameter(weight, shape, Initializer::kNormal, scale);
    matrix.decay = 1;
    matrix.dtype = op.activation;
    op.AddParameter(bias, Shape{shape[0]}, Initializer::kZeros).dtype = op.activation;
  }

  const int64_t units_;
  const float fc_scale_, proj_scale_;
};

}  // namespace

const OpFactory kMakeLinear = kit::NewOp<OwnedLinearOp>;
const OpFactory kMakeMlp = kit::NewOp<MlpOp>;
const OpFactory kMakeTiedLinear = kit::NewOp<TiedLinearOp>;

}  // namespace engine::cuda_ops
