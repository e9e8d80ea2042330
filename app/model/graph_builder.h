// From a model plugin to a graph.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/plugin/plugin_set.h"
#include "engine/model.h"

namespace engine::model {

struct ModelRequest {
  Array<const SampleTensor> inputs, targets;  // of the data, borrowed
  int64_t max_samples = 1;                    // the most of one step on one rank
  bool with_loss = true;  // false: a graph for inference, which ends at the outputs
  // Parameters whose name starts with one of these are not trained; one that fits none is kConfig.
  std::vector<std::string> frozen;
  std::vector<std::string> recompute;                // MarkRecomputed, where there is a loss
  const plugin::PluginSelection* plugins = nullptr;  // borrowed: of the ops, for messages
  base::CallWatch* watch = nullptr;                  // or null: nobody looks
};

class GraphBuilder final : public ModelBuilderBase {
 public:
  // `request` is borrowed.
  GraphBuilder(const ModelRequest& request, plugin::OpFactory factory);

  ModelData data() const noexcept override;
  TensorSpec Spec(ModelValue value) const noexcept override;
  uint32_t Offers(std::string_view op, Array<const OptionValue> attributes) noexcept override;
  Status Apply(const LayerSpec& layer, std::span<const ModelValue> inputs,
               std::span<ModelValue> outputs) noexcept override;
  Status Parameter(std::string_view name, const ParameterSpec* wanted,
                   ModelValue* out) noexcept override;
  Status Output(std::string_view name, ModelValue value) noexcept override;
  Status Loss(ModelValue value) noexcept override;

  const Status& status() const { return status_; }  // the first error
  // Hands the graph over, or that.
  Result<graph::Graph> Finish();

 private:
  bool IsUsable(ModelValue value) const;
  bool IsLoss(ModelValue value) const;
  Status Keep(const Status& status);
  graph::ValueId AddValue(graph::Value value);
  graph::ValueId AddParameter(std::string name, const ParameterSpec& wanted,
                              const LayerSpec& layer);
  Status AddNode(const LayerSpec& layer, std::span<const ModelValue> inputs,
                 std::span<ModelValue> outputs);
  Status MakeOp(const LayerSpec& layer, graph::Node* node) const;
  Status Freeze();

  const ModelRequest& request_;
  const plugin::OpFactory factory_;
  graph::Graph graph_;
  std::vector<graph::ValueId> losses_;
  Status status_;
};

// The graph that `model` builds of the ops that `factory` makes. kConfig when the model does not fit
// the data or the ops, kPlugin when it breaks its contract.
Result<graph::Graph> BuildModel(const Model& model, const ModelRequest& request,
                                const plugin::OpFactory& factory);

}  // namespace engine::model
