#include "core/models/model.h"

namespace engine {

Result<ValueId> BuildCnn(GraphBuilder& builder, const config::Cnn& cnn, ValueId input,
                         int64_t classes) {
  std::vector<int32_t> channels(cnn.channels().begin(), cnn.channels().end());
  if (channels.empty()) channels = {32, 64};
  ENGINE_ASSIGN_OR_RETURN(ValueId x, ChannelsLast(builder, "cnn", input));
  for (size_t i = 0; i < channels.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    ENGINE_ASSIGN_OR_RETURN(
        x, builder.Apply("conv" + number, "conv2d", {x},
                         {Int("channels", channels[i]), Int("kernel", 3), Bool("bias", false)}));
    ENGINE_ASSIGN_OR_RETURN(
        x, builder.Apply("bn" + number, "batch_norm", {x}, {Bool("sync", cnn.sync_batch_norm())}));
    ENGINE_ASSIGN_OR_RETURN(x, builder.Apply("relu" + number, "relu", {x}));
  }
  ENGINE_ASSIGN_OR_RETURN(x, builder.Apply("pool", "max_pool", {x}, {Int("kernel", 2)}));
  ENGINE_ASSIGN_OR_RETURN(x, builder.Apply("flatten", "flatten", {x}));
  return builder.Apply("fc", "linear", {x}, {Int("units", classes)});
}

}  // namespace engine
