// resnet: a residual net over images (He et al., arXiv:1512.03385), with torchvision's structure and
// names of parameters.
#include <string>
#include <vector>

#include "kit/loss_model.h"
#include "kit/model.h"

namespace engine::resnet {
namespace {

using kit::Bool;
using kit::Int;

constexpr size_t kMaxStages = 8;  // of twice the channels of the one before

struct Settings {
  std::vector<int64_t> blocks;  // of each stage
  int64_t width;
  bool bottleneck, large_stem, sync_batch_norm;
};

// x: (B, H, W, C). Blocks, strides and initial values as torchvision has them: a block of two
// convolutions puts its stride into the first, a bottleneck into the one in its middle.
class Parts {
 public:
  Parts(ModelBuilder& builder, const Settings& resnet) : builder_(builder), resnet_(resnet) {}

  Result<ModelValue> Stem(ModelValue x) {
    const bool large = resnet_.large_stem;
    ENGINE_ASSIGN_OR_RETURN(
        x, ConvNorm("conv1", "bn1", x, resnet_.width, large ? 7 : 3, large ? 2 : 1));
    ENGINE_ASSIGN_OR_RETURN(x, Relu("relu", x));
    if (!large) return x;
    return kit::Apply(builder_, "maxpool", "max_pool", {x},
                      {Int("kernel", 3), Int("stride", 2), Int("padding", 1)});
  }

  Result<ModelValue> Block(const std::string& name, ModelValue x, int64_t width, int64_t stride) {
    const int64_t channels = resnet_.bottleneck ? 4 * width : width;
    ENGINE_ASSIGN_OR_RETURN(const ModelValue h, resnet_.bottleneck
                                                    ? Bottleneck(name, x, width, stride)
                                                    : TwoConvolutions(name, x, width, stride));
    if (stride != 1 || builder_.Spec(x).shape[-1] != channels) {
      ENGINE_ASSIGN_OR_RETURN(
          x, ConvNorm(name + ".downsample.0", name + ".downsample.1", x, channels, 1, stride));
    }
    ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder_, name + ".add", "add", {x, h}));
    return Relu(name + ".relu", x);
  }

 private:
  Result<ModelValue> TwoConvolutions(const std::string& name, ModelValue x, int64_t width,
                                     int64_t stride) {
    ENGINE_ASSIGN_OR_RETURN(x, ConvNorm(name + ".conv1", name + ".bn1", x, width, 3, stride));
    ENGINE_ASSIGN_OR_RETURN(x, Relu(name + ".relu1", x));
    return ConvNorm(name + ".conv2", name + ".bn2", x, width, 3, 1);
  }

  Result<ModelValue> Bottleneck(const std::string& name, ModelValue x, int64_t width,
                                int64_t stride) {
    ENGINE_ASSIGN_OR_RETURN(x, ConvNorm(name + ".conv1", name + ".bn1", x, width, 1, 1));
    ENGINE_ASSIGN_OR_RETURN(x, Relu(name + ".relu1", x));
    ENGINE_ASSIGN_OR_RETURN(x, ConvNorm(name + ".conv2", name + ".bn2", x, width, 3, stride));
    ENGINE_ASSIGN_OR_RETURN(x, Relu(name + ".relu2", x));
    return ConvNorm(name + ".conv3", name + ".bn3", x, 4 * width, 1, 1);
  }

  Result<ModelValue> Relu(const std::string& name, ModelValue x) {
    return kit::Apply(builder_, name, "relu", {x});
  }

  // A convolution that keeps the size, but for the stride, and its batch norm.
  Result<ModelValue> ConvNorm(const std::string& conv, const std::string& norm, ModelValue x,
                              int64_t channels, int64_t kernel, int64_t stride) {
    ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder_, conv, "conv2d", {x},
                                          {Int("channels", channels), Int("kernel", kernel),
                                           Int("stride", stride), Int("padding", kernel / 2),
                                           Bool("bias", false), kit::Word("init", "kaiming")}));
    return kit::Apply(builder_, norm, "batch_norm", {x}, {Bool("sync", resnet_.sync_batch_norm)});
  }

  ModelBuilder& builder_;
  const Settings& resnet_;
};

class Resnet final : public kit::LossModel {
 public:
  explicit Resnet(const Options& options)
      : LossModel(options),
        settings_{.blocks = {options.Ints("blocks").begin(), options.Ints("blocks").end()},
                  .width = options.Int("width"),
                  .bottleneck = options.Bool("bottleneck"),
                  .large_stem = options.String("stem") == "IMAGENET",
                  .sync_batch_norm = options.Bool("sync_batch_norm")} {}

  Result<ModelValue> Predict(ModelBuilder& builder) const override {
    ENGINE_ASSIGN_OR_RETURN(ModelValue x, kit::ChannelsLast(builder, "resnet"));
    Parts parts(builder, settings_);
    ENGINE_ASSIGN_OR_RETURN(x, parts.Stem(x));
    for (size_t stage = 0; stage < settings_.blocks.size(); ++stage) {
      const int64_t width = settings_.width << stage;
      for (int64_t block = 0; block < settings_.blocks[stage]; ++block) {
        const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
        const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
        ENGINE_ASSIGN_OR_RETURN(x, parts.Block(name, x, width, stride));
      }
    }
    ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder, "avgpool", "global_avg_pool", {x}));
    ENGINE_ASSIGN_OR_RETURN(const int64_t units, OutputUnits(builder));
    return kit::Apply(builder, "fc", "linear", {x}, {Int("units", units)});
  }

 private:
  const Settings settings_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const size_t stages = options.Ints("blocks").size();
  if (stages <= kMaxStages) return kit::Create<Resnet>(host, options, out);
  return Status::Error(StatusCode::kConfig, "model.resnet: %zu stages in 'blocks'; at most %zu",
                       stages, kMaxStages);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kModel, "resnet", "1.0.0",
    "a residual net over images: ResNet-18, 34, 50 and the like", Create,
    kit::WithLoss(std::array{
        kit::IntsOption("blocks", "2,2,2,2", 1, 1024,
                        "of each stage, which has twice the channels of the one before"),
        kit::BoolOption("bottleneck", "false",
                        "blocks of 1x1, 3x3 and 1x1 with four times the channels"),
        kit::IntOption("width", "64", 1, 1 << 16, "channels of the first stage"),
        kit::EnumOption("stem", "IMAGENET", "IMAGENET|CIFAR",
                        "7x7 with stride 2, then max pooling 3x3 with stride 2; or "
                        "3x3, for small images"),
        kit::BoolOption(
            "sync_batch_norm", "true",
            "statistics over the batch of all ranks, so that their number makes no difference")}));

}  // namespace engine::resnet
