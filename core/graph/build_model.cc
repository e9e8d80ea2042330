#include "core/graph/build_model.h"

#include <algorithm>
#include <string_view>

namespace engine::graph {
namespace {

std::vector<plugin::OwnedOption> Own(std::span<const OptionValue> values) {
  std::vector<plugin::OwnedOption> owned;
  for (const OptionValue& value : values) {
    owned.push_back({.name = std::string(value.name),
                     .type = value.type,
                     .integer = value.integer,
                     .number = value.number,
                     .string = std::string(value.string),
                     .integers = {value.integers.begin(), value.integers.end()}});
  }
  return owned;
}

Status BrokenContract(const char* what) {
  return Status::Error(StatusCode::kPlugin, "the model %s; this is an error of its plugin", what);
}

class Adapter final : public ModelBuilder {
 public:
  Adapter(const ModelRequest& request, const OpFactory& factory)
      : request_(request), builder_(factory, request.max_samples) {
    for (const auto& tensors : {request.inputs, request.targets}) {
      for (const SampleTensor& tensor : tensors) {
        builder_.Input(std::string(tensor.name), tensor.shape, tensor.dtype);
      }
    }
  }

  ModelData data() const noexcept override {
    return {.inputs = request_.inputs,
            .targets = request_.targets,
            .with_loss = request_.with_loss ? 1u : 0u};
  }

  TensorSpec Spec(ModelValue value) const noexcept override {
    return builder_.Has(value) ? builder_.spec(value) : TensorSpec();
  }

  bool Offers(std::string_view op, std::span<const OptionValue> attributes) noexcept override {
    return builder_.Offers(std::string(op), Own(attributes));
  }

  Status Apply(const LayerSpec& layer, std::span<const ModelValue> inputs,
               std::span<ModelValue> outputs) noexcept override {
    for (const ModelValue input : inputs) {
      if (!IsUsable(input))
        return Keep(BrokenContract("feeds an op with a value that is not there"));
    }
    if (!status_.ok()) return status_;
    const LayerOptions options{.trainable = layer.trainable != 0,
                               .priority = layer.priority,
                               .learning_rate_scale = layer.learning_rate_scale,
                               .weight_decay_scale = layer.weight_decay_scale,
                               .row_table = std::string(layer.row_table)};
    const auto made =
        builder_.ApplyAll(std::string(layer.name), std::string(layer.op),
                          {inputs.begin(), inputs.end()}, Own(layer.attributes), options);
    if (!made.ok()) return Keep(made.status());
    if (made->size() < outputs.size()) return Keep(BrokenContract("takes more than an op gives"));
    std::copy_n(made->begin(), outputs.size(), outputs.begin());
    return {};
  }

  Status Parameter(std::string_view name, const ParameterSpec* wanted,
                   ModelValue* out) noexcept override {
    if (!status_.ok()) return status_;
    auto value = wanted == nullptr ? builder_.ParameterValue(std::string(name))
                                   : builder_.MakeParameter(std::string(name), *wanted);
    if (!value.ok()) return Keep(value.status());
    *out = *value;
    return {};
  }

  Status Output(std::string_view name, ModelValue value) noexcept override {
    if (!IsUsable(value)) return Keep(BrokenContract("has an output that is not there"));
    outputs_.push_back({std::string(name), value});
    return status_;
  }

  Status Loss(ModelValue value) noexcept override {
    if (!IsUsable(value)) return Keep(BrokenContract("has a loss that is not there"));
    if (!request_.with_loss) return Keep(BrokenContract("adds a loss to a graph for inference"));
    if (!builder_.IsLoss(value)) {
      return Keep(
          Status::Error(StatusCode::kConfig,
                        "model: '%s' is no loss: end with an op that gives its sum over the "
                        "targets, their number and how many were right",
                        builder_.NameOf(value).c_str()));
    }
    losses_.push_back(value);
    return status_;
  }

  Result<Graph> Finish() {
    ENGINE_RETURN_IF_ERROR(status_);
    if (outputs_.empty()) return BrokenContract("has no output");
    if (request_.with_loss && losses_.empty()) return BrokenContract("has no loss");
    ValueId loss = losses_.empty() ? kNone : losses_[0];
    for (size_t i = 1; i < losses_.size(); ++i) {
      const std::string name = "loss.sum" + std::to_string(i);
      ENGINE_ASSIGN_OR_RETURN(loss, builder_.Apply(name, "add", {loss, losses_[i]}));
    }
    const auto inputs = static_cast<ValueId>(request_.inputs.size());
    const auto all = inputs + static_cast<ValueId>(request_.targets.size());
    const bool has_target = request_.with_loss && all > inputs;
    ENGINE_ASSIGN_OR_RETURN(Graph graph, builder_.Finish(0, has_target ? inputs : kNone,
                                                         outputs_[0].value, loss, request_.frozen));
    graph.outputs = outputs_;
    for (ValueId i = 1; i < inputs; ++i) graph.others.push_back(i);
    for (ValueId i = inputs + 1; has_target && i < all; ++i) graph.others.push_back(i);
    return graph;
  }

 private:
  // Targets have no content in a graph for inference.
  bool IsUsable(ModelValue value) const {
    const auto inputs = static_cast<ValueId>(request_.inputs.size());
    const auto all = inputs + static_cast<ValueId>(request_.targets.size());
    return builder_.Has(value) && (request_.with_loss || value < inputs || value >= all);
  }

  // The first error stays.
  Status Keep(const Status& status) {
    if (status_.ok()) status_ = status;
    return status_;
  }

  const ModelRequest& request_;
  GraphBuilder builder_;
  std::vector<GraphOutput> outputs_;
  std::vector<ValueId> losses_;
  Status status_;
};

}  // namespace

Result<Graph> BuildModel(const Model& model, const ModelRequest& request,
                         const OpFactory& factory) {
  if (request.inputs.empty()) {
    return Status::Error(StatusCode::kPlugin, "the dataset has samples without any input");
  }
  Adapter adapter(request, factory);
  ENGINE_RETURN_IF_ERROR(model.Build(adapter));
  return adapter.Finish();
}

}  // namespace engine::graph
