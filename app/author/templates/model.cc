// my_plugin: a layer over the flattened input, blocks that add to what they read (He et al., "Deep
// residual learning for image recognition", 2015), and a layer that gives a number for each class.
#include "kit/model.h"

#include <array>
#include <cstdint>
#include <string>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/loss_model.h"
#include "kit/options.h"

namespace engine {
namespace {

using kit::Apply;

class Residual final : public kit::LossModel {
 public:
  // Options that the descriptor below publishes are always there, and within their ranges.
  explicit Residual(const Options& options)
      : LossModel(options), width_(options.Int("width")), blocks_(options.Int("blocks")) {}

  // The same graph on every rank. Input i of the data is value i, targets follow; Apply adds an op of
  // any chosen plugin by its name and gives the value that it makes.
  Result<ModelValue> Predict(ModelBuilder& builder) const override {
    ENGINE_ASSIGN_OR_RETURN(ModelValue x, Apply(builder, "", "flatten", {0}));
    ENGINE_ASSIGN_OR_RETURN(x, Apply(builder, "", "linear", {x}, {kit::Int("units", width_)}));
    for (int64_t block = 0; block < blocks_; ++block) {
      ENGINE_ASSIGN_OR_RETURN(ModelValue more, Apply(builder, "", "relu", {x}));
      ENGINE_ASSIGN_OR_RETURN(more,
                              Apply(builder, "", "linear", {more}, {kit::Int("units", width_)}));
      ENGINE_ASSIGN_OR_RETURN(x, Apply(builder, "", "add", {x, more}));
    }
    ENGINE_ASSIGN_OR_RETURN(const int64_t units, OutputUnits(builder));
    return Apply(builder, "", "linear", {x}, {kit::Int("units", units)});
  }

 private:
  const int64_t width_, blocks_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "my_plugin",
     .version = "0.1.0",
     .kind = PluginKind::kModel,
     .doc = "blocks that add to what they read",
     .create = kit::Create<Residual>},
    NoOps(),
    kit::WithLoss(std::array{kit::IntOption("width", "32", 1, 65536, "of every layer"),
                             kit::IntOption("blocks", "2", 0, 1000, "between the two ends")}));

}  // namespace engine
