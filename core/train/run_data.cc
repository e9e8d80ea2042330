#include "core/train/run_data.h"

#include <string>
#include <utility>

#include "core/plugin/load_plugins.h"
#include "core/train/augment.h"

namespace engine::train {
namespace {

constexpr Device* kNoDevice = nullptr;

Status CheckTensor(const std::string& dataset, const SampleTensor& tensor) {
  bool fits = tensor.shape.ndim < kMaxDims && tensor.classes >= 0 && SizeOf(tensor.dtype) > 0;
  for (int32_t i = 0; i < tensor.shape.ndim; ++i) fits = fits && tensor.shape[i] > 0;
  fits = fits && (tensor.classes == 0 || tensor.dtype == DType::kInt32);
  if (fits) return {};
  return Status::Error(StatusCode::kPlugin,
                       "%s: the tensor '%s' has a shape, a type or classes that cannot be; this is "
                       "an error of its plugin",
                       dataset.c_str(), std::string(tensor.name).c_str());
}

Status CheckInfo(const DatasetInfo& info) {
  const std::string name(info.name);
  if (info.inputs.empty() || info.train_samples < 0 || info.held_out_samples < 0) {
    return Status::Error(StatusCode::kPlugin,
                         "%s: samples without input, or fewer than none; this is an error of its "
                         "plugin",
                         name.c_str());
  }
  for (const auto& tensors : {info.inputs, info.targets}) {
    for (const SampleTensor& tensor : tensors) ENGINE_RETURN_IF_ERROR(CheckTensor(name, tensor));
  }
  return {};
}

}  // namespace

Result<HostedDataset> MakeDataset(const RunConfig& config, base::RankContext& rank) {
  const plugin::PluginChoice& choice = config.plugins.dataset;
  HostedDataset made;
  made.host = std::make_unique<plugin::PluginHost>(choice.entry.name, rank, &kNoDevice, nullptr);
  ENGINE_ASSIGN_OR_RETURN(made.dataset, plugin::CreateDataset(choice, *made.host));
  return made;
}

Result<HostedDataset> OpenDataset(const RunConfig& config, base::RankContext& rank) {
  ENGINE_ASSIGN_OR_RETURN(HostedDataset data, MakeDataset(config, rank));
  ENGINE_RETURN_IF_ERROR(data.dataset->Open(config.seed));
  ENGINE_RETURN_IF_ERROR(CheckInfo(data.info()));
  if (config.data.crop_padding == 0 && !config.data.flip) return data;
  const AugmentOptions options{
      .crop_padding = config.data.crop_padding, .flip = config.data.flip, .seed = config.seed};
  ENGINE_ASSIGN_OR_RETURN(data.dataset, AugmentImages(std::move(data.dataset), options));
  return data;
}

graph::ModelRequest RequestFor(const DatasetInfo& info, int64_t max_samples, bool with_loss) {
  return {.inputs = info.inputs,
          .targets = info.targets,
          .max_samples = max_samples,
          .with_loss = with_loss};
}

Result<graph::Graph> BuildGraph(const RunConfig& config, base::RankContext& rank,
                                graph::ModelRequest request, const graph::OpFactory& ops) {
  const plugin::PluginChoice& choice = config.plugins.model;
  plugin::PluginHost host(choice.entry.name, rank, &kNoDevice, nullptr);
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, plugin::CreateModel(choice, host));
  request.frozen = config.train.frozen;
  return graph::BuildModel(*model, request, ops);
}

}  // namespace engine::train
