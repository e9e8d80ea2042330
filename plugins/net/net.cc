// net: a list of layers from the configuration, each fed by the one before it.
#include <vector>

#include "kit/loss_model.h"
#include "kit/model.h"

namespace engine::net {
namespace {

// A layer without an op is a residual block: what its two lists of layers make of x is added up; an
// empty list gives x itself.
Result<ModelValue> Chain(ModelBuilder& builder, Array<const LayerSpec> layers, ModelValue x) {
  for (const LayerSpec& layer : layers) {
    if (!layer.op.empty()) {
      ENGINE_RETURN_IF_ERROR(builder.Apply(layer, std::vector{x}, {&x, 1}));
      continue;
    }
    ENGINE_ASSIGN_OR_RETURN(const ModelValue h, Chain(builder, layer.residual, x));
    ENGINE_ASSIGN_OR_RETURN(x, Chain(builder, layer.shortcut, x));
    LayerSpec sum = layer;
    sum.op = "add";
    ENGINE_RETURN_IF_ERROR(builder.Apply(sum, std::vector{x, h}, {&x, 1}));
  }
  return x;
}

class Net final : public kit::LossModel {
 public:
  explicit Net(const Options& options) : LossModel(options), layers_(options.Layers("layer")) {}

  Result<ModelValue> Predict(ModelBuilder& builder) const override {
    return Chain(builder, layers_, 0);
  }

 private:
  const Array<const LayerSpec> layers_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kModel, "net", "1.0.0", "a list of layers, each fed by the one before it",
    kit::Create<Net>,
    kit::WithLoss(
        std::array{OptionSpec{.name = "layer",
                              .type = OptionType::kLayers,
                              .doc = "one op, or a residual block; the last one has to give "
                                     "the number of classes of the data"}}));

}  // namespace engine::net
