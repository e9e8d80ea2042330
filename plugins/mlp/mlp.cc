// mlp: fully connected layers over the flattened input.
#include <string>
#include <vector>

#include "kit/model.h"

namespace engine::mlp {
namespace {

class Mlp final : public ModelBase {
 public:
  explicit Mlp(const Options& options)
      : hidden_(options.Ints("hidden").begin(), options.Ints("hidden").end()),
        activation_(options.String("activation")),
        loss_(options.String("loss")) {}

  Status Build(ModelBuilder& builder) const noexcept override {
    ModelValue x = 0;
    if (builder.Spec(x).shape.ndim > 2) {
      ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "", "flatten", {x}));
    }
    for (const int64_t units : hidden_) {
      ENGINE_ASSIGN_OR_RETURN(x,
                              kit::Apply(builder, "", "linear", {x}, {kit::Int("units", units)}));
      ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "", activation_, {x}));
    }
    ENGINE_ASSIGN_OR_RETURN(const int64_t units, kit::OutputUnits(builder, "mlp"));
    ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "", "linear", {x}, {kit::Int("units", units)}));
    return kit::PredictTarget(builder, x, loss_);
  }

 private:
  const std::vector<int64_t> hidden_;
  const std::string activation_, loss_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "mlp",
     .version = "1.0.0",
     .kind = PluginKind::kModel,
     .doc = "fully connected layers over the flattened input",
     .create = kit::Create<Mlp>},
    NoOps(),
    std::array{kit::IntsOption("hidden", "", 1, 1 << 20, "widths of the hidden layers"),
               kit::OpOption("activation", "relu", "any op with one input"), kit::LossOption()});

}  // namespace engine::mlp
