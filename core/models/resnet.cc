#include "core/models/model.h"

namespace engine {
namespace {

constexpr int32_t kMaxStages = 8;  // of twice the channels of the one before

// x: (B, H, W, C). Blocks, strides and initial values as torchvision has them: a block of two
// convolutions puts its stride into the first, a bottleneck into the one in its middle.
class ResnetBuilder {
 public:
  ResnetBuilder(GraphBuilder& builder, const config::Resnet& resnet)
      : builder_(builder), resnet_(resnet) {}

  Result<ValueId> Stem(ValueId x) {
    const bool large = resnet_.stem() == config::Resnet::IMAGENET;
    ENGINE_ASSIGN_OR_RETURN(
        x, ConvNorm("conv1", "bn1", x, resnet_.width(), large ? 7 : 3, large ? 2 : 1));
    ENGINE_ASSIGN_OR_RETURN(x, builder_.Apply("relu", "relu", {x}));
    if (!large) return x;
    return builder_.Apply("maxpool", "max_pool", {x},
                          {Int("kernel", 3), Int("stride", 2), Int("padding", 1)});
  }

  Result<ValueId> Block(const std::string& name, ValueId x, int64_t width, int64_t stride) {
    const int64_t channels = resnet_.bottleneck() ? 4 * width : width;
    ENGINE_ASSIGN_OR_RETURN(const ValueId h, resnet_.bottleneck()
                                                 ? Bottleneck(name, x, width, stride)
                                                 : TwoConvolutions(name, x, width, stride));
    if (stride != 1 || builder_.spec(x).shape[-1] != channels) {
      ENGINE_ASSIGN_OR_RETURN(
          x, ConvNorm(name + ".downsample.0", name + ".downsample.1", x, channels, 1, stride));
    }
    ENGINE_ASSIGN_OR_RETURN(x, builder_.Apply(name + ".add", "add", {x, h}));
    return builder_.Apply(name + ".relu", "relu", {x});
  }

 private:
  Result<ValueId> TwoConvolutions(const std::string& name, ValueId x, int64_t width,
                                  int64_t stride) {
    ENGINE_ASSIGN_OR_RETURN(x, ConvNorm(name + ".conv1", name + ".bn1", x, width, 3, stride));
    ENGINE_ASSIGN_OR_RETURN(x, builder_.Apply(name + ".relu1", "relu", {x}));
    return ConvNorm(name + ".conv2", name + ".bn2", x, width, 3, 1);
  }

  Result<ValueId> Bottleneck(const std::string& name, ValueId x, int64_t width, int64_t stride) {
    ENGINE_ASSIGN_OR_RETURN(x, ConvNorm(name + ".conv1", name + ".bn1", x, width, 1, 1));
    ENGINE_ASSIGN_OR_RETURN(x, builder_.Apply(name + ".relu1", "relu", {x}));
    ENGINE_ASSIGN_OR_RETURN(x, ConvNorm(name + ".conv2", name + ".bn2", x, width, 3, stride));
    ENGINE_ASSIGN_OR_RETURN(x, builder_.Apply(name + ".relu2", "relu", {x}));
    return ConvNorm(name + ".conv3", name + ".bn3", x, 4 * width, 1, 1);
  }

  // A convolution that keeps the size, but for the stride, and its batch norm.
  Result<ValueId> ConvNorm(const std::string& conv, const std::string& norm, ValueId x,
                           int64_t channels, int64_t kernel, int64_t stride) {
    const OwnedOption kaiming{
        .name = "init", .type = OptionType::kEnum, .integer = 0, .number = 0, .string = "kaiming"};
    ENGINE_ASSIGN_OR_RETURN(
        x, builder_.Apply(conv, "conv2d", {x},
                          {Int("channels", channels), Int("kernel", kernel), Int("stride", stride),
                           Int("padding", kernel / 2), Bool("bias", false), kaiming}));
    return builder_.Apply(norm, "batch_norm", {x}, {Bool("sync", resnet_.sync_batch_norm())});
  }

  GraphBuilder& builder_;
  const config::Resnet& resnet_;
};

}  // namespace

Result<ValueId> BuildResnet(GraphBuilder& builder, const config::Resnet& resnet, ValueId input,
                            int64_t classes) {
  std::vector<int32_t> blocks(resnet.blocks().begin(), resnet.blocks().end());
  if (blocks.empty()) blocks = {2, 2, 2, 2};
  if (blocks.size() > kMaxStages) {
    return Status::Error(StatusCode::kConfig, "model.resnet: %zu stages in 'blocks'; at most %d",
                         blocks.size(), kMaxStages);
  }
  ENGINE_ASSIGN_OR_RETURN(ValueId x, ChannelsLast(builder, "resnet", input));
  ResnetBuilder parts(builder, resnet);
  ENGINE_ASSIGN_OR_RETURN(x, parts.Stem(x));
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const int64_t width = int64_t{resnet.width()} << stage;
    for (int32_t block = 0; block < blocks[stage]; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      ENGINE_ASSIGN_OR_RETURN(x, parts.Block(name, x, width, stride));
    }
  }
  ENGINE_ASSIGN_OR_RETURN(x, builder.Apply("avgpool", "global_avg_pool", {x}));
  return builder.Apply("fc", "linear", {x}, {Int("units", classes)});
}

}  // namespace engine
