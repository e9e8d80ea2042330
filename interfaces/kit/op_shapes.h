// What the ops that models are made of say of themselves: checks, shapes, parameters and their
// initial values, and what Backward reads, whatever the device. Memory, views and all that a
// library does in its own way it adds to the signature itself. As op.h: compiled into the plugin
// that includes it. A rule is the attributes of an op, its Infer, and what that found out.
//
// Activations are float32, or bfloat16 in a run that has them so; then the parameters that are
// matrices, and what is added to products, are read in bfloat16 too. An op that a model begins with
// takes its batch in float32 as well.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>

#include "engine/op.h"
#include "engine/options.h"
#include "engine/status.h"
#include "kit/op.h"

namespace engine::kit {

// A call of Infer.
struct Inference {
  const char* name;  // of the op
  DType activation;  // kFloat32 or kBFloat16
  Array<const TensorSpec> inputs;
  OpSignature* signature;
  mutable size_t data_inputs = 0;  // as CheckInputCount was told

  bool IsActivation(size_t input) const noexcept { return inputs[input].dtype == activation; }
  // An activation, or a batch in float32.
  bool IsBatch(size_t input) const noexcept {
    return IsActivation(input) || inputs[input].dtype == DType::kFloat32;
  }

  // Of data; what there is more are parameters (Gradients).
  Status CheckInputCount(size_t count) const noexcept {
    data_inputs = count;
    return inputs.size() > count ? Status() : kit::CheckInputCount(name, inputs, count);
  }
  Status InputError(size_t index, const char* need) const noexcept {
    return kit::InputError(name, inputs, index, need);
  }
  // Where an activation is needed: "float32 (B, C)" for a `shape` of " (B, C)".
  Status ActivationError(size_t index, const char* shape) const noexcept {
    char need[160];
    snprintf(need, sizeof need, "%s%s", Name(activation), shape);
    return InputError(index, need);
  }
  // Input 1, which is to be like input 0.
  Status CheckSameAsFirst() const noexcept {
    const TensorSpec &a = inputs[0], &b = inputs[1];
    if (b.dtype == a.dtype && b.shape == a.shape && b.batched == a.batched) return {};
    return InputError(1, "the type, shape and batch dimension of input 0");
  }

  // A parameter without weight decay, in float32. A name is a literal.
  ParameterSpec& AddParameter(const FixedString<32>& parameter, const Shape& shape,
                              Initializer initializer, float scale = 0) const noexcept {
    ParameterSpec& added = kit::AddParameter(signature, shape);
    added.name = parameter;
    added.initializer = initializer;
    added.scale = scale;
    added.decay = 0;
    return added;
  }
  // Of a product, with its bias if there is one: both in the type of activations. Normal with that
  // deviation and a bias of 0, or, for a `deviation` of 0, PyTorch's rule for nn.Linear and
  // nn.Conv2d: both uniform in +-1/sqrt(fan-in).
  void AddProduct(const Shape& weight, int64_t units, bool bias, int64_t fan_in,
                  float deviation) const noexcept {
    const bool normal = deviation > 0;
    const float bound = 1.0f / std::sqrt(static_cast<float>(fan_in));
    ParameterSpec& matrix =
        AddParameter("weight", weight, normal ? Initializer::kNormal : Initializer::kUniform,
                     normal ? deviation : bound);
    matrix.decay = 1;
    matrix.dtype = activation;
    if (!bias) return;
    AddParameter("bias", Shape{units}, normal ? Initializer::kZeros : Initializer::kUniform,
                 normal ? 0.0f : bound)
        .dtype = activation;
  }
  void AddOutput(const Shape& shape) const noexcept {
    kit::AddOutput(signature, shape, inputs[0].batched, activation);
  }

  // Ends Infer: inputs with gradients, all of which Backward can add to, and what it reads.
  Status Gradients(uint32_t differentiable, uint32_t reads_inputs,
                   uint32_t reads_outputs = 0) const noexcept {
    signature->differentiable_inputs = differentiable;
    signature->accumulates = differentiable;
    signature->backward_reads_inputs = reads_inputs;
    signature->backward_reads_outputs = reads_outputs;
    return TakeGivenParameters();
  }
  // Ends Infer where output 0 has the elements of input 0: its memory, too, when `view`.
  Status Passes(bool view) const noexcept {
    signature->passes_gradient = view ? 1 : 0;
    signature->output_is_view_of = view ? 0 : -1;
    return Gradients(1, 0);
  }

  // A model may give an op its parameters as further inputs: all of them, in the order and with the
  // shapes that they have where the op makes them. As parameters follow data in every list, Forward
  // and Backward do not see a difference. Buffers cannot be given.
  Status TakeGivenParameters() const noexcept {
    if (inputs.size() == data_inputs) return {};
    const std::span made(signature->parameters, static_cast<size_t>(signature->parameter_count));
    if (made.empty() || !std::ranges::all_of(made, &ParameterSpec::trained)) {
      return kit::CheckInputCount(name, inputs, data_inputs);
    }
    if (inputs.size() != data_inputs + made.size()) {
      return Status::Error(StatusCode::kConfig,
                           "%s: got %zu inputs; it needs %zu, or %zu with its parameters", name,
                           inputs.size(), data_inputs, data_inputs + made.size());
    }
    for (size_t i = 0; i < made.size(); ++i) {
      const TensorSpec& given = inputs[data_inputs + i];
      const TensorSpec own = {made[i].shape, made[i].dtype, 0};
      if (given.dtype == own.dtype && given.shape == own.shape && given.batched == 0) continue;
      char need[240];
      snprintf(need, sizeof need, "the parameter '%s', %s without a batch", made[i].name.text,
               SpecText(own).text);
      return InputError(data_inputs + i, need);
    }
    signature->parameter_count = 0;
    return {};
  }
};

// tokens (B, ...) -> (B, ..., width); of positions, the last dimension of tokens counts.
struct EmbeddingRule {
  int64_t vocabulary, width, positions;
  float init_scale;

  explicit EmbeddingRule(const Options& attributes) noexcept
      : vocabulary(attributes.Int("vocabulary")),
        width(attributes.Int("width")),
        positions(attributes.Int("positions")),
        init_scale(static_cast<float>(attributes.Float("init_scale"))) {}

  Status Infer(const Inference& op) const noexcept {
    ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
    const TensorSpec& tokens = op.inputs[0];
    const int32_t ndim = tokens.shape.ndim;
    if (tokens.dtype != DType::kInt32 || ndim < (positions > 0 ? 2 : 1) || ndim == kMaxDims) {
      return op.InputError(0, positions > 0 ? "int32 (B, ..., T)" : "int32 (B, ...)");
    }
    if (positions > 0 && tokens.shape[-1] > positions) {
      return Status::Error(StatusCode::kConfig,
                           "%s: samples of %lld tokens are longer than the %lld positions; raise "
                           "'positions' or shorten the samples",
                           op.name, static_cast<long long>(tokens.shape[-1]),
                           static_cast<long long>(positions));
    }
    Shape y = tokens.shape;
    y.dims[y.ndim++] = width;
    op.AddOutput(y);
    const auto add_table = [&](const FixedString<32>& name, int64_t rows) {
      ParameterSpec& table =
          op.AddParameter(name, Shape{rows, width}, Initializer::kNormal, init_scale);
      table.decay = 1;
      table.dtype = op.activation;
    };
    add_table("weight", vocabulary);
    if (positions > 0) add_table("positions", positions);
    return op.Gradients(positions > 0 ? 0b110 : 0b10, 0b1);
  }
};

// x (..., K) -> (..., units); weight (units, K), or (K, units) if `transposed`; bias (units).
struct LinearAttributes {
  int64_t units;
  bool bias, transposed;
  float init_scale;

  explicit LinearAttributes(const Options& attributes) noexcept
      : units(attributes.Int("units")),
        bias(attributes.Bool("bias")),
        transposed(attributes.Bool("transposed")),
        init_scale(static_cast<float>(attributes.Float("init_scale"))) {}
};

// Checks x, and gives out what becomes of it.
inline Status InferProduct(const Inference& op, int64_t units) noexcept {
  Shape y = op.inputs[0].shape;
  if (!op.IsBatch(0) || y.ndim < 2 || y[-1] < 1) {
    return op.InputError(0, op.activation == DType::kFloat32
                                ? "float32 (..., K), at least two dimensions, K >= 1"
                                : "bfloat16 or float32 (..., K), at least two dimensions, K >= 1");
  }
  y[-1] = units;
  op.AddOutput(y);
  return {};
}

inline Status InferLinear(const Inference& op, const LinearAttributes& given) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  ENGINE_RETURN_IF_ERROR(InferProduct(op, given.units));
  const int64_t width = op.inputs[0].shape[-1];
  const Shape weight = given.transposed ? Shape{width, given.units} : Shape{given.units, width};
  op.AddProduct(weight, given.units, given.bias, width, given.init_scale);
  return op.Gradients(given.bias ? 0b111 : 0b11, 0b11);
}

// x (..., K) and a parameter (V, K) of another op -> (..., V)
inline Status InferTiedLinear(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(2));
  const TensorSpec& table = op.inputs[1];
  const bool is_table = op.IsActivation(1) && table.shape.ndim == 2 && table.batched == 0;
  ENGINE_RETURN_IF_ERROR(InferProduct(op, is_table ? table.shape[0] : 0));
  if (!is_table || table.shape[0] < 1 || table.shape[1] != op.inputs[0].shape[-1]) {
    return op.InputError(
        1, op.activation == DType::kFloat32
               ? "a parameter, float32 (V, K), with the K of input 0's last dimension"
               : "a parameter, bfloat16 (V, K), with the K of input 0's last dimension");
  }
  return op.Gradients(0b11, 0b11);
}

// So many inputs, the first of which is normalised with weight and bias (C).
inline Status CheckNormInputs(const Inference& op, size_t count) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(count));
  const Shape& x = op.inputs[0].shape;
  if (op.IsActivation(0) && x.ndim >= 2 && x[-1] >= 1) return {};
  return op.ActivationError(0, " (..., C), at least two dimensions, C >= 1");
}

inline void AddNormParameters(const Inference& op, int64_t width) noexcept {
  op.AddParameter("weight", Shape{width}, Initializer::kOnes);
  op.AddParameter("bias", Shape{width}, Initializer::kZeros);
}

// x (..., C) -> the same
inline Status InferLayerNorm(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckNormInputs(op, 1));
  op.AddOutput(op.inputs[0].shape);
  AddNormParameters(op, op.inputs[0].shape[-1]);
  return op.Gradients(0b111, 0b11);
}

// a, b (..., C) -> a + b, layer_norm(a + b)
inline Status InferAddLayerNorm(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckNormInputs(op, 2));
  ENGINE_RETURN_IF_ERROR(op.CheckSameAsFirst());
  op.AddOutput(op.inputs[0].shape);
  op.AddOutput(op.inputs[0].shape);
  AddNormParameters(op, op.inputs[0].shape[-1]);
  op.signature->equal_gradients = 0b11;
  op.signature->in_place_of = 0;
  return op.Gradients(0b1111, 0b100, 0b1);
}

// qkv (B, T, 3C) -> (B, T, C)
inline Status InferAttention(const Inference& op, int64_t heads) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  const Shape& qkv = op.inputs[0].shape;
  if (!op.IsActivation(0) || qkv.ndim != 3 || qkv[2] < 3 || qkv[2] % 3 != 0) {
    return op.ActivationError(0, " (B, T, 3C): queries, keys and values side by side");
  }
  const int64_t width = qkv[2] / 3;
  if (width % heads != 0) {
    return Status::Error(StatusCode::kConfig,
                         "%s: %lld heads do not divide a width of %lld; choose another number of "
                         "heads or another width",
                         op.name, static_cast<long long>(heads), static_cast<long long>(width));
  }
  op.AddOutput(Shape{qkv[0], qkv[1], width});
  return op.Gradients(1, 1);
}

// x (B, ...) -> (B, product of the rest); a view unless it is rounded.
inline Status InferFlatten(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  const Shape& x = op.inputs[0].shape;
  if (!op.IsBatch(0) || x.ndim < 1) return op.ActivationError(0, " (B, ...)");
  op.AddOutput(Shape{x[0], x.Count(1)});
  return op.Passes(op.IsActivation(0));
}

// x (B, ...) -> the same: while it trains, y = x / (1 - rate) for the elements that are kept, each
// with probability 1 - rate, and 0 for the others (Srivastava et al., JMLR 15, 2014). In evaluation
// y = x. A rate of 0 makes a view.
struct DropoutRule {
  double rate;
  bool batched = false;  // whether x has samples

  explicit DropoutRule(const Options& attributes) noexcept : rate(attributes.Float("rate")) {}

  Status Infer(const Inference& op) noexcept {
    ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
    const Shape& x = op.inputs[0].shape;
    batched = op.inputs[0].batched != 0;
    if (!op.IsActivation(0) || x.ndim < 1) return op.ActivationError(0, " (B, ...)");
    if (!(rate >= 0.0 && rate < 1.0)) {
      return Status::Error(StatusCode::kConfig,
                           "%s: a rate of %g is no probability below 1; it needs 0 <= rate < 1",
                           op.name, rate);
    }
    op.AddOutput(x);
    if (rate != 0.0) op.signature->in_place_of = 0;
    return op.Passes(rate == 0.0);
  }
};

// y = f(x). `reads_output`: its derivative is computed from y, else from x; then y is not put in
// its place.
inline Status InferFunction(const Inference& op, bool reads_output) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  if (!op.IsActivation(0)) return op.ActivationError(0, "");
  op.AddOutput(op.inputs[0].shape);
  op.signature->in_place_of = reads_output ? 0 : -1;
  return op.Gradients(1, reads_output ? 0 : 1, reads_output ? 1 : 0);
}

// y = a + b. `takes_float32`: in every run.
inline Status InferSum(const Inference& op, bool takes_float32) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(2));
  if (!(takes_float32 ? op.IsBatch(0) : op.IsActivation(0))) return op.ActivationError(0, "");
  ENGINE_RETURN_IF_ERROR(op.CheckSameAsFirst());
  AddOutput(op.signature, op.inputs[0].shape, op.inputs[0].batched, op.inputs[0].dtype);
  op.signature->passes_gradient = 0b11;
  op.signature->in_place_of = 0;
  return op.Gradients(0b11, 0);
}

// An op of class Base, which has Inferring(), with the attributes and the Infer of a rule.
template <typename Base, typename Rule>
class ShapedOp : public Base {
 public:
  template <typename Context>
  ShapedOp(const Context& context, const Options& attributes) noexcept
      : Base(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept final {
    ENGINE_RETURN_IF_ERROR(given_.Infer(this->Inferring(inputs, signature)));
    return Plan(inputs, signature);
  }

 protected:
  // What the library adds: memory, and what it takes down of the shapes.
  virtual Status Plan(Array<const TensorSpec>, OpSignature*) noexcept { return {}; }

  Rule given_;
};

}  // namespace engine::kit
