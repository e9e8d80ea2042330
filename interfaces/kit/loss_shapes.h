// As op_shapes.h, for losses.
//
// Inputs are a prediction and its target, then, in any order and each only if wanted, weights of
// samples (batched, float32: one for each sample or each target) and, of a loss over classes,
// weights of classes (not batched, float32 (V)). Output 0 is float32[3]: the sum over targets of
// weight times loss, the sum of the weights, and that of the weights of the targets that were
// predicted correctly (0 of targets that are any numbers). Without weights the second is the number of
// targets. A mean is the first number divided by the second.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/op.h"
#include "engine/options.h"
#include "engine/status.h"
#include "kit/op_shapes.h"

namespace engine::kit {

// What all losses can be told. Several are the sum of weight times mean when all but one are
// auxiliary: their second and third number are 0, so that they are divided by the weights of that one.
struct LossAttributes {
  float weight;  // of the first number alone, and so of the gradient
  bool auxiliary;

  explicit LossAttributes(const Options& attributes) noexcept
      : weight(static_cast<float>(attributes.Float("weight"))),
        auxiliary(attributes.Bool("auxiliary")) {}
};

// With the share s of label smoothing, class weights w (else 1) and p = softmax(x), the loss of a
// target t is
//
//   (1 - s) w[t] -log p[t]  +  s / V  sum over c of w[c] -log p[c],
//
// its weight w[t] (times that of its sample): PyTorch's CrossEntropyLoss. A target of ignore_index
// has neither.
struct SoftmaxCrossEntropyAttributes : LossAttributes {
  float label_smoothing;
  int32_t ignore_index;

  explicit SoftmaxCrossEntropyAttributes(const Options& attributes) noexcept
      : LossAttributes(attributes),
        label_smoothing(static_cast<float>(attributes.Float("label_smoothing"))),
        ignore_index(static_cast<int32_t>(attributes.Int("ignore_index"))) {}
};

// Element by element, with x the prediction and d = x - t:
//
//   mean_squared_error    d^2
//   mean_absolute_error   |d|
//   huber                 d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2)
//   binary_cross_entropy  -(pos_weight t log(p) + (1 - t) log(1 - p)) with p = sigmoid(x), for t in
//                         [0, 1]; predicted correctly where x > 0 just when t > 1/2

// Which of the inputs are weights; 0: none.
struct LossInputs {
  size_t sample_weights = 0, class_weights = 0;
  int64_t targets_per_weight = 1;  // target i has weight i / targets_per_weight of a sample
};

// Takes what comes behind prediction and target of a loss of `targets` targets over `classes` (0:
// over numbers).
inline Result<LossInputs> InferWeights(const Inference& op, int64_t targets,
                                       int64_t classes) noexcept {
  LossInputs found;
  for (size_t i = 2; i < op.inputs.size(); ++i) {
    const TensorSpec& weights = op.inputs[i];
    size_t& place = weights.batched != 0 ? found.sample_weights : found.class_weights;
    const int64_t count = weights.shape.Count();
    const bool fits = weights.batched != 0 ? count > 0 && targets % count == 0
                                           : classes > 0 && weights.shape == Shape{classes};
    if (place != 0 || !fits || weights.dtype != DType::kFloat32) {
      return op.InputError(i, classes > 0 ? "a weight for each sample, float32 and batched, or one "
                                            "for each class, float32 (V), of either once at most"
                                          : "a weight for each sample, float32 and batched, once");
    }
    place = i;
    if (weights.batched != 0) found.targets_per_weight = targets / count;
  }
  return found;
}

inline Status CheckLossInputCount(const Inference& op, size_t most) noexcept {
  return op.CheckInputCount(std::clamp<size_t>(op.inputs.size(), 2, most));
}

inline Status FinishLoss(const Inference& op) noexcept {
  AddOutput(op.signature, Shape{3}, 0);
  op.signature->is_loss = 1;
  // Backward reads the weights too.
  return op.Gradients(0b1, (1u << op.inputs.size()) - 1);
}

// logits (..., V) and targets (...), int32
inline Result<LossInputs> InferSoftmaxCrossEntropy(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckLossInputCount(op, 4));
  const TensorSpec &logits = op.inputs[0], &targets = op.inputs[1];
  if (!op.IsActivation(0) || logits.shape.ndim < 2 || logits.shape[-1] < 1) {
    return op.ActivationError(0, " (..., V), at least two dimensions, V >= 1");
  }
  Shape rows = logits.shape;
  rows.dims[--rows.ndim] = 0;
  if (targets.dtype != DType::kInt32 || !(targets.shape == rows) ||
      targets.batched != logits.batched) {
    return op.InputError(1, "int32, shaped as input 0 without its last dimension");
  }
  ENGINE_ASSIGN_OR_RETURN(const LossInputs inputs,
                          InferWeights(op, rows.Count(), logits.shape[-1]));
  ENGINE_RETURN_IF_ERROR(FinishLoss(op));
  return inputs;
}

// The extents of a batch, without those behind the first that are 1.
inline Shape WithoutOnes(const Shape& shape) noexcept {
  Shape rest;
  for (int32_t i = 0; i < shape.ndim; ++i) {
    if (i == 0 || shape[i] != 1) rest.dims[rest.ndim++] = shape[i];
  }
  return rest;
}

// prediction (B, ...) and target (B, ...), float32, of the same extents but for ones. `binary`: the
// target may be int32 of 0 and 1.
inline Result<LossInputs> InferElementLoss(const Inference& op, bool binary) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckLossInputCount(op, 3));
  const TensorSpec &prediction = op.inputs[0], &target = op.inputs[1];
  if (!op.IsActivation(0) || prediction.shape.ndim < 1) return op.ActivationError(0, " (B, ...)");
  const bool is_number =
      target.dtype == DType::kFloat32 || (binary && target.dtype == DType::kInt32);
  if (!is_number || target.batched != prediction.batched ||
      !(WithoutOnes(target.shape) == WithoutOnes(prediction.shape))) {
    return op.InputError(1, binary ? "float32, or int32 of 0 and 1, shaped as input 0"
                                   : "float32, shaped as input 0");
  }
  ENGINE_ASSIGN_OR_RETURN(const LossInputs inputs,
                          InferWeights(op, prediction.shape.Count(), /*classes=*/0));
  ENGINE_RETURN_IF_ERROR(FinishLoss(op));
  return inputs;
}

}  // namespace engine::kit
