// Models: builders over core/graph. They know no device and no rank.
#pragma once

#include <vector>

#include "app/config/config.h"
#include "core/graph/builder.h"

namespace engine {

// What the data asks of a model.
struct ModelInputs {
  Shape input_shape;  // of one sample
  DType input_dtype = DType::kFloat32;
  Shape target_shape;  // of one sample; logits are (samples, target_shape, classes)
  int64_t classes = 0;
  int64_t max_samples = 1;
  bool with_loss = true;  // false: a graph for inference, which ends at the logits
};

// The model that `model` describes (`layers` is Config::layers(), for model.net). kConfig when it
// does not fit the data.
Result<Graph> BuildModel(const config::Model& model, const std::vector<LayerConfig>& layers,
                         const ModelInputs& inputs, const OpFactory& factory);

// train.group: multiplies the factors of each parameter by those of the group with the longest
// prefix of its name. kConfig names a prefix that fits none.
Status ScaleParameters(const google::protobuf::RepeatedPtrField<config::ParameterGroup>& groups,
                       Graph* graph);

// The parameter of the op "embedding" whose rows its tokens pick.
constexpr char kEmbeddingTable[] = "weight";

// For train.sparse_pull: kConfig with what to do when no parameter that is trained is a row table.
Status CheckHasRowTables(const Graph& graph, const config::Model& model);

// The parts, each from the input to the logits.
Result<ValueId> BuildMlp(GraphBuilder& builder, const config::Mlp& mlp, ValueId input,
                         int64_t classes);
Result<ValueId> BuildGpt(GraphBuilder& builder, const config::Gpt& gpt, ValueId tokens,
                         int64_t classes);
Result<ValueId> BuildCnn(GraphBuilder& builder, const config::Cnn& cnn, ValueId input,
                         int64_t classes);
Result<ValueId> BuildResnet(GraphBuilder& builder, const config::Resnet& resnet, ValueId input,
                            int64_t classes);
Result<ValueId> BuildNet(GraphBuilder& builder, const std::vector<LayerConfig>& layers,
                         ValueId input);

// For models over images: `input` with channels last. kConfig, which names `model`, when it is no
// image.
Result<ValueId> ChannelsLast(GraphBuilder& builder, const char* model, ValueId input);

}  // namespace engine
