// cnn: a small net over images: convolutions 3x3, each with batch norm and relu, then max pooling 2x2
// and a fully connected layer.
#include <string>
#include <vector>

#include "kit/loss_model.h"
#include "kit/model.h"

namespace engine::cnn {
namespace {

using kit::Bool;
using kit::Int;

class Cnn final : public kit::LossModel {
 public:
  explicit Cnn(const Options& options)
      : LossModel(options),
        channels_(options.Ints("channels").begin(), options.Ints("channels").end()),
        sync_batch_norm_(options.Bool("sync_batch_norm")) {}

  Result<ModelValue> Predict(ModelBuilder& builder) const override {
    ENGINE_ASSIGN_OR_RETURN(ModelValue x, kit::ChannelsLast(builder, "cnn"));
    for (size_t i = 0; i < channels_.size(); ++i) {
      const std::string number = std::to_string(i + 1);
      ENGINE_ASSIGN_OR_RETURN(
          x, kit::Apply(builder, "conv" + number, "conv2d", {x},
                        {Int("channels", channels_[i]), Int("kernel", 3), Bool("bias", false)}));
      ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "bn" + number, "batch_norm", {x},
                                            {Bool("sync", sync_batch_norm_)}));
      ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "relu" + number, "relu", {x}));
    }
    ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "pool", "max_pool", {x}, {Int("kernel", 2)}));
    ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "flatten", "flatten", {x}));
    ENGINE_ASSIGN_OR_RETURN(const int64_t units, OutputUnits(builder));
    return kit::Apply(builder, "fc", "linear", {x}, {Int("units", units)});
  }

 private:
  const std::vector<int64_t> channels_;
  const bool sync_batch_norm_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kModel, "cnn", "1.0.0",
    "convolutions with batch norm over images, max pooling, a fully connected layer",
    kit::Create<Cnn>,
    kit::WithLoss(std::array{
        kit::IntsOption("channels", "32,64", 1, 1 << 16, "of each convolution"),
        kit::BoolOption(
            "sync_batch_norm", "true",
            "statistics over the batch of all ranks, so that their number makes no difference")}));

}  // namespace engine::cnn
