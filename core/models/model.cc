#include "core/models/model.h"

namespace engine {
namespace {

Result<ValueId> BuildLogits(GraphBuilder& builder, const config::Model& model,
                            const std::vector<LayerConfig>& layers, const ModelInputs& inputs,
                            ValueId input) {
  switch (model.kind_case()) {
    case config::Model::kMlp:
      return BuildMlp(builder, model.mlp(), input, inputs.classes);
    case config::Model::kGpt:
      return BuildGpt(builder, model.gpt(), input, inputs.classes);
    case config::Model::kNet:
      return BuildNet(builder, layers, input);
    case config::Model::kResnet:
      return BuildResnet(builder, model.resnet(), input, inputs.classes);
    case config::Model::kCnn:
      return BuildCnn(builder, model.cnn(), input, inputs.classes);
    case config::Model::KIND_NOT_SET:
      break;
  }
  return Status::Error(StatusCode::kConfig, "model: name one of mlp, gpt, resnet, cnn, net");
}

// Logits must be one row of `classes` for every target.
Status CheckLogits(const TensorSpec& logits, const TensorSpec& target, int64_t classes) {
  const bool rows_fit = logits.shape.ndim > 0 && logits.shape.Count(0, -1) == target.shape.Count();
  if (rows_fit && logits.shape[-1] == classes &&
      (logits.dtype == DType::kFloat32 || logits.dtype == DType::kBFloat16)) {
    return {};
  }
  return Status::Error(
      StatusCode::kConfig,
      "model: the last layer gives %lld values in rows of %lld, but the data has %lld "
      "targets of %lld classes; end with linear { units: %lld }",
      static_cast<long long>(logits.shape.Count()),
      static_cast<long long>(logits.shape.ndim > 0 ? logits.shape[-1] : 1),
      static_cast<long long>(target.shape.Count()), static_cast<long long>(classes),
      static_cast<long long>(classes));
}

}  // namespace

Result<ValueId> ChannelsLast(GraphBuilder& builder, const char* model, ValueId input) {
  const TensorSpec& spec = builder.spec(input);
  if (spec.dtype == DType::kFloat32 && spec.shape.ndim == 4) {
    return builder.Apply("", "to_channels_last", {input});
  }
  return Status::Error(StatusCode::kConfig,
                       "model.%s reads images of (channels, height, width): it needs data { mnist "
                       "{ ... } } or data { cifar10 { ... } }",
                       model);
}

Result<Graph> BuildModel(const config::Model& model, const std::vector<LayerConfig>& layers,
                         const ModelInputs& inputs, const OpFactory& factory) {
  GraphBuilder builder(factory, inputs.max_samples);
  const ValueId input = builder.Input("input", inputs.input_shape, inputs.input_dtype);
  const ValueId target = builder.Input("target", inputs.target_shape, DType::kInt32);
  ENGINE_ASSIGN_OR_RETURN(const ValueId logits, BuildLogits(builder, model, layers, inputs, input));
  ENGINE_RETURN_IF_ERROR(CheckLogits(builder.spec(logits), builder.spec(target), inputs.classes));
  ValueId loss = kNone;
  if (inputs.with_loss) {
    ENGINE_ASSIGN_OR_RETURN(loss, builder.Apply("loss", "softmax_cross_entropy", {logits, target}));
  }
  return builder.Finish(input, inputs.with_loss ? target : kNone, logits, loss,
                        {model.frozen().begin(), model.frozen().end()});
}

}  // namespace engine
