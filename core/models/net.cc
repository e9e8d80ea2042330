#include "core/models/model.h"

namespace engine {

Result<ValueId> BuildNet(GraphBuilder& builder, const std::vector<LayerConfig>& layers,
                         ValueId input) {
  ValueId x = input;
  for (const LayerConfig& layer : layers) {
    const LayerOptions options{.trainable = layer.trainable,
                               .priority = layer.priority,
                               .learning_rate_scale = layer.learning_rate_scale,
                               .weight_decay_scale = layer.weight_decay_scale,
                               .row_table = layer.op == "embedding" ? kEmbeddingTable : ""};
    if (layer.op.empty()) {
      ENGINE_ASSIGN_OR_RETURN(const ValueId h, BuildNet(builder, layer.residual, x));
      ENGINE_ASSIGN_OR_RETURN(x, BuildNet(builder, layer.shortcut, x));
      ENGINE_ASSIGN_OR_RETURN(x, builder.Apply(layer.name, "add", {x, h}, {}, options));
    } else {
      ENGINE_ASSIGN_OR_RETURN(x,
                              builder.Apply(layer.name, layer.op, {x}, layer.attributes, options));
    }
  }
  return x;
}

}  // namespace engine
