// mlp: fully connected layers over the flattened input.
#include <string>
#include <vector>

#include "kit/loss_model.h"
#include "kit/model.h"

namespace engine::mlp {
namespace {

class Mlp final : public kit::LossModel {
 public:
  explicit Mlp(const Options& options)
      : LossModel(options),
        hidden_(options.Ints("hidden").begin(), options.Ints("hidden").end()),
        activation_(options.String("activation")) {}

  Result<ModelValue> Predict(ModelBuilder& builder) const override {
    ModelValue x = 0;
    if (builder.Spec(x).shape.ndim > 2) {
      ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "", "flatten", {x}));
    }
    for (const int64_t units : hidden_) {
      ENGINE_ASSIGN_OR_RETURN(x,
                              kit::Apply(builder, "", "linear", {x}, {kit::Int("units", units)}));
      ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "", activation_, {x}));
    }
    ENGINE_ASSIGN_OR_RETURN(const int64_t units, OutputUnits(builder));
    return kit::Apply(builder, "", "linear", {x}, {kit::Int("units", units)});
  }

 private:
  const std::vector<int64_t> hidden_;
  const std::string activation_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kModel, "mlp", "1.0.0", "fully connected layers over the flattened input",
    kit::Create<Mlp>,
    kit::WithLoss(
        std::array{kit::IntsOption("hidden", "", 1, 1 << 20, "widths of the hidden layers"),
                   kit::OpOption("activation", "relu", "any op with one input")}));

}  // namespace engine::mlp
