// Models: builders over core/graph. They know no device and no rank.
#pragma once

#include <vector>

#include "app/config/config.h"
#include "core/graph/builder.h"
#include "core/train/evaluate.h"

namespace engine {

// The model that `model` describes (`layers` is Config::layers(), for model.net). kConfig when it
// does not fit the data.
Result<Graph> BuildModel(const config::Model& model, const std::vector<LayerConfig>& layers,
                         const ModelInputs& inputs, const OpFactory& factory);

// The parameter of the op "embedding" whose rows its tokens pick.
constexpr char kEmbeddingTable[] = "weight";

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
