// Models whose loss is chosen by the configuration: any op that is a loss (kit/loss_shapes.h), by name
// or with attributes, for each target of the data. Compiled into the plugin that includes it and no
// part of the ABI.
//
//   mlp { hidden: 128 loss: "huber" }
//   mlp { hidden: 128 class_weights: "1, 0.2, 5"
//         criterion { softmax_cross_entropy { label_smoothing: 0.1 ignore_index: -100 } } }
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ext/initial_values.h"
#include "kit/dataset.h"
#include "kit/model.h"
#include "kit/op.h"

namespace engine::kit {

// `own`, then the options that a Criterion reads.
template <size_t kOwn>
constexpr std::array<OptionSpec, kOwn + 3> WithLoss(
    const std::array<OptionSpec, kOwn>& own) noexcept {
  std::array<OptionSpec, kOwn + 3> all;
  for (size_t i = 0; i < kOwn; ++i) all[i] = own[i];
  all[kOwn] = OpOption("loss", "softmax_cross_entropy", "any op that is a loss");
  all[kOwn + 1] = {.name = "criterion",
                   .type = OptionType::kLayers,
                   .max = 64,
                   .doc =
                       "the loss with attributes, in the place of `loss`; several: one for each "
                       "target of the data, of which the sum is minimised"};
  all[kOwn + 2] = StringOption("class_weights", "",
                               "of the first target, a number for each class: \"1, 0.2, 5\"");
  return all;
}

// Several losses are the sum of attribute `weight` times mean, each over targets of its own: all but
// the first are auxiliary, and their weights make up for another number of targets in a sample. Of the
// ops of others, which may not have these attributes, sums and numbers of targets are added up.
class Criterion {
 public:
  explicit Criterion(const Options& options)
      : loss_(options.String("loss")),
        criteria_(options.Layers("criterion")),
        class_weights_(options.String("class_weights")) {}

  // Targets to predict, without the weights of samples.
  static std::vector<ModelValue> Targets(const ModelData& data) {
    std::vector<ModelValue> found;
    for (size_t i = 0; i < data.targets.size(); ++i) {
      if (data.targets[i].name == kSampleWeight) continue;
      found.push_back(static_cast<ModelValue>(data.inputs.size() + i));
    }
    return found;
  }

  // How many numbers a model gives for target `index` of those: one for each class and element, or,
  // where classes are not told apart by their scores, one for each element of the target. kConfig when
  // there is no such target.
  Result<int64_t> OutputUnits(const ModelBuilder& builder, size_t index = 0) const {
    const ModelData data = builder.data();
    const std::vector<ModelValue> targets = Targets(data);
    if (index >= targets.size()) {
      return Status::Error(StatusCode::kConfig,
                           "the model predicts %zu targets, but a sample has %zu", index + 1,
                           targets.size());
    }
    const SampleTensor& target = TargetOf(data, targets[index]);
    return HasScores(target, index) ? target.classes : target.shape.Count();
  }

  // Ends a graph with a loss: prediction i is compared with target i. kConfig when they do not fit.
  Status Add(ModelBuilder& builder, std::span<const ModelValue> predictions) const {
    const ModelData data = builder.data();
    const std::vector<ModelValue> targets = Targets(data);
    if (predictions.size() != targets.size() ||
        (criteria_.size() > 1 && criteria_.size() != targets.size())) {
      return Status::Error(StatusCode::kConfig,
                           "the model gives %zu predictions, a sample has %zu targets, and there "
                           "are %zu losses (criterion): as many are needed of each",
                           predictions.size(), targets.size(),
                           std::max<size_t>(criteria_.size(), 1));
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      std::vector<ModelValue> inputs = {predictions[i], targets[i]};
      ENGINE_RETURN_IF_ERROR(CheckPrediction(builder, inputs[0], inputs[1], i));
      ENGINE_RETURN_IF_ERROR(AddWeights(builder, i, &inputs));
      ENGINE_RETURN_IF_ERROR(AddLoss(builder, inputs, i));
    }
    return {};
  }

  // kConfig unless prediction `index` has the shape that OutputUnits asks for.
  Status CheckPrediction(const ModelBuilder& builder, ModelValue prediction, ModelValue target,
                         size_t index) const {
    const SampleTensor& tensor = TargetOf(builder.data(), target);
    if (tensor.classes == 0 && LossOf(index).op == kCrossEntropy) {
      return Status::Error(StatusCode::kConfig,
                           "the targets are numbers, not classes: choose a loss over numbers, as "
                           "loss: \"mean_squared_error\"");
    }
    const TensorSpec given = builder.Spec(prediction), wanted = builder.Spec(target);
    if (!HasScores(tensor, index)) return {};  // for the op to check
    const bool rows = given.shape.ndim > 0 && given.shape.Count(0, -1) == wanted.shape.Count();
    const bool fits = rows && given.shape[-1] == tensor.classes;
    if (fits && (given.dtype == DType::kFloat32 || given.dtype == DType::kBFloat16)) return {};
    const bool wide = given.shape.ndim > wanted.shape.ndim + 1;
    return Status::Error(
        StatusCode::kConfig,
        "the last layer gives %s, in rows of %lld for %lld targets of %lld classes; %send with "
        "linear { units: %lld }",
        SpecText(given).text, static_cast<long long>(given.shape.ndim > 0 ? given.shape[-1] : 1),
        static_cast<long long>(wanted.shape.Count()), static_cast<long long>(tensor.classes),
        wide ? "put flatten {} before it, and " : "", static_cast<long long>(tensor.classes));
  }

  // The values of the constant that class weights are, for InitialValues of the model.
  bool Has(std::string_view parameter) const noexcept {
    return parameter == kClassWeights && !class_weights_.empty();
  }
  void Read(std::span<float> values) const noexcept {
    std::ranges::copy_n(Numbers().begin(), static_cast<std::ptrdiff_t>(values.size()),
                        values.begin());
  }

 private:
  static constexpr std::string_view kClassWeights = "class_weights";
  static constexpr std::string_view kCrossEntropy = "softmax_cross_entropy";

  static const SampleTensor& TargetOf(const ModelData& data, ModelValue value) {
    return data.targets[static_cast<size_t>(value) - data.inputs.size()];
  }

  LayerSpec LossOf(size_t index) const {
    if (criteria_.empty()) return {.op = loss_};
    return criteria_[std::min(index, criteria_.size() - 1)];
  }

  // Whether it takes a number for each class.
  bool HasScores(const SampleTensor& target, size_t index) const {
    return target.classes > 0 && LossOf(index).op != "binary_cross_entropy";
  }

  // Empty unless all are numbers from 0 on.
  std::vector<float> Numbers() const {
    std::vector<float> numbers;
    const char* at = class_weights_.c_str();
    while (*(at += std::strspn(at, ", ")) != '\0') {
      char* end = nullptr;
      numbers.push_back(std::strtof(at, &end));
      if (end == at || !(numbers.back() >= 0) || std::isinf(numbers.back())) return {};
      at = end;
    }
    return numbers;
  }

  Status AddWeights(ModelBuilder& builder, size_t index, std::vector<ModelValue>* inputs) const {
    const ModelData data = builder.data();
    for (size_t i = 0; i < data.targets.size(); ++i) {
      if (data.targets[i].name != kSampleWeight) continue;
      inputs->push_back(static_cast<ModelValue>(data.inputs.size() + i));
    }
    if (index > 0 || class_weights_.empty()) return {};
    const int64_t classes = TargetOf(data, (*inputs)[1]).classes;
    const auto given = static_cast<int64_t>(Numbers().size());
    if (given != classes || classes == 0) {
      return Status::Error(StatusCode::kConfig,
                           "class_weights: \"%s\" is no list of a number from 0 on for each of the "
                           "%lld classes",
                           class_weights_.c_str(), static_cast<long long>(classes));
    }
    const ParameterSpec weights{.shape = {classes}, .initializer = Initializer::kConstant};
    return builder.Parameter(kClassWeights, &weights, &inputs->emplace_back());
  }

  Status AddLoss(ModelBuilder& builder, const std::vector<ModelValue>& inputs, size_t index) const {
    LayerSpec layer = LossOf(index);
    std::vector<OptionValue> attributes(layer.attributes.begin(), layer.attributes.end());
    const std::string name = index == 0 ? "loss" : "loss" + std::to_string(index + 1);
    if (layer.name.empty()) layer.name = name;
    if (index > 0) {
      const auto count = [&](size_t i) {
        const auto value = Targets(builder.data())[i];
        return static_cast<double>(TargetOf(builder.data(), value).shape.Count());
      };
      double weight = count(0) / count(index);
      std::erase_if(attributes, [&](const OptionValue& value) {
        if (value.name == "weight") weight *= value.number;
        return value.name == "weight" || value.name == "auxiliary";
      });
      attributes.insert(attributes.end(), {Float("weight", weight), Bool("auxiliary", true)});
    }
    if (index == 0 || builder.Offers(layer.op, attributes) != 0) layer.attributes = attributes;
    ModelValue loss = 0;
    ENGINE_RETURN_IF_ERROR(builder.Apply(layer, inputs, {&loss, 1}));
    return builder.Loss(loss);
  }

  const std::string loss_;
  const Array<const LayerSpec> criteria_;
  const std::string class_weights_;
};

// A model of one prediction, the output "logits".
class LossModel : public ModelBase, public InitialValuesBase {
 public:
  Status Build(ModelBuilder& builder) const noexcept final {
    ENGINE_ASSIGN_OR_RETURN(const ModelValue prediction, Predict(builder));
    const std::vector<ModelValue> targets = Criterion::Targets(builder.data());
    if (targets.size() == 1) {
      ENGINE_RETURN_IF_ERROR(criterion_.CheckPrediction(builder, prediction, targets[0], 0));
    }
    ENGINE_RETURN_IF_ERROR(builder.Output("logits", prediction));
    return builder.data().with_loss == 0 ? Status() : criterion_.Add(builder, {&prediction, 1});
  }

  void* Query(std::string_view id) noexcept override { return Offer<InitialValues>(id, this); }
  uint32_t Has(std::string_view parameter) const noexcept final {
    return criterion_.Has(parameter) ? 1 : 0;
  }
  Status Read(std::string_view /*parameter*/, std::span<float> values) const noexcept final {
    criterion_.Read(values);
    return {};
  }

 protected:
  explicit LossModel(const Options& options) : criterion_(options) {}

  virtual Result<ModelValue> Predict(ModelBuilder& builder) const = 0;

  Result<int64_t> OutputUnits(const ModelBuilder& builder) const {
    return criterion_.OutputUnits(builder);
  }

 private:
  const Criterion criterion_;
};

}  // namespace engine::kit
