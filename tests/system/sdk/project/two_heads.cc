// two_heads: a model with as many inputs and targets as the data has: what it knows of all inputs
// together goes through hidden layers, and then a head of its own predicts each target.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kit/model.h"

namespace {

using engine::ModelValue;
using engine::kit::Apply;
using engine::kit::Int;

class TwoHeads final : public engine::ModelBase {
 public:
  explicit TwoHeads(const engine::Options& options)
      : hidden_(options.Ints("hidden").begin(), options.Ints("hidden").end()),
        activation_(options.String("activation")) {}

  engine::Status Build(engine::ModelBuilder& builder) const noexcept override {
    const engine::ModelData data = builder.data();
    const auto inputs = static_cast<ModelValue>(data.inputs.size());
    const auto targets = static_cast<ModelValue>(data.targets.size());
    if (hidden_.empty()) {
      return engine::Status::Error(engine::StatusCode::kConfig,
                                   "model.two_heads needs at least one hidden layer");
    }
    // Input i is the value i of the graph.
    ENGINE_ASSIGN_OR_RETURN(ModelValue x, Apply(builder, "", "linear", {0}, {Width(0)}));
    for (ModelValue input = 1; input < inputs; ++input) {
      ENGINE_ASSIGN_OR_RETURN(const ModelValue more,
                              Apply(builder, "", "linear", {input}, {Width(0)}));
      ENGINE_ASSIGN_OR_RETURN(x, Apply(builder, "", "add", {x, more}));
    }
    ENGINE_ASSIGN_OR_RETURN(x, Apply(builder, "", activation_, {x}));
    for (size_t layer = 1; layer < hidden_.size(); ++layer) {
      ENGINE_ASSIGN_OR_RETURN(x, Apply(builder, "", "linear", {x}, {Width(layer)}));
      ENGINE_ASSIGN_OR_RETURN(x, Apply(builder, "", activation_, {x}));
    }
    for (ModelValue i = 0; i < targets; ++i) {
      const engine::SampleTensor& target = data.targets[static_cast<size_t>(i)];
      const std::string name(target.name);
      ENGINE_ASSIGN_OR_RETURN(const ModelValue head, Apply(builder, name + ".head", "linear", {x},
                                                           {Int("units", target.classes)}));
      ENGINE_RETURN_IF_ERROR(builder.Output(name, head));
      if (data.with_loss == 0) continue;
      // Target i is the value inputs + i. What is minimised is the sum of all losses.
      ENGINE_ASSIGN_OR_RETURN(
          const ModelValue loss,
          Apply(builder, name + ".loss", "softmax_cross_entropy", {head, inputs + i}));
      ENGINE_RETURN_IF_ERROR(builder.Loss(loss));
    }
    return {};
  }

 private:
  engine::OptionValue Width(size_t layer) const { return Int("units", hidden_[layer]); }

  const std::vector<int64_t> hidden_;
  const std::string activation_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = engine::DescribePlugin(
    {.name = "two_heads",
     .version = "1.0.0",
     .kind = engine::PluginKind::kModel,
     .doc = "hidden layers over all inputs, and a head for each target",
     .create = engine::kit::Create<TwoHeads>},
    engine::NoOps(),
    std::array{engine::kit::IntsOption("hidden", "32,32", 1, 65536, "widths of the hidden layers"),
               engine::kit::OpOption("activation", "relu", "any op with one input")});
