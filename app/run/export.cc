#include "app/run/export.h"

#include <algorithm>
#include <utility>

#include "app/data/dataset_source.h"
#include "app/model/model_graph.h"
#include "app/weights/made_ops.h"
#include "core/plugin/rank_plugins.h"

namespace engine::run {

// Ops say what shapes they make and compute nothing, so no parameter is copied to a device.
Result<std::vector<std::string>> ExportModel(const checkpoint::OpenedCheckpoint& checkpoint,
                                             const config::Config& config, base::RankContext& rank,
                                             const ExportFiles& files) {
  data::DatasetSource data(config.run(), rank);
  ENGINE_RETURN_IF_ERROR(data.Make());
  data::DatasetSource opened(config.run(), rank);
  const bool known = !data.info().inputs.empty();
  if (!known) ENGINE_RETURN_IF_ERROR(opened.Open());
  const DatasetInfo info = known ? data.info() : opened.info();

  plugin::PluginSelection chosen = config.plugins();
  chosen.communicator = chosen.optimizer = chosen.scheduler = {};
  chosen.hooks.clear();
  ENGINE_ASSIGN_OR_RETURN(const auto plugins, plugin::RankPlugins::Create(chosen, rank));
  weights::MadeOps ops(chosen, plugins->op_factory());
  const auto request = model::RequestFor(info, std::max<int64_t>(files.batch, 1), false);
  ENGINE_ASSIGN_OR_RETURN(const graph::Graph graph,
                          model::BuildGraph(config.run(), rank, request, ops.factory()));
  ENGINE_ASSIGN_OR_RETURN(std::vector<const float*> values,
                          weights::ValuesOf(*checkpoint.file, graph));
  const weights::TrainedGraph model{graph, ops, std::move(values)};
  if (!files.safetensors.empty()) {
    ENGINE_RETURN_IF_ERROR(weights::ExportSafetensors(files.safetensors, model));
  }
  if (files.onnx.empty()) return std::vector<std::string>();
  return weights::ExportOnnx(files.onnx, model,
                             {.name = config.plugins().model.entry.name,
                              .any_batch = files.batch == 0,
                              .fold_batch_norm = files.fold_batch_norm});
}

}  // namespace engine::run
