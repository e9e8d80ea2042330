// The dataset of a run, as one rank reads it, and the graph that its model builds for it.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/rank_context.h"
#include "core/graph/build_model.h"
#include "core/plugin/plugin_host.h"
#include "core/train/run_config.h"
#include "engine/dataset.h"

namespace engine::train {

// A plugin object with the host that it was made with.
struct HostedDataset {
  std::unique_ptr<plugin::PluginHost> host;
  std::unique_ptr<Dataset> dataset;

  const Dataset& operator*() const { return *dataset; }
  DatasetInfo info() const { return dataset->info(); }
};

// The dataset that `config` chooses, which has read nothing yet. Both arguments are borrowed.
Result<HostedDataset> MakeDataset(const RunConfig& config, base::RankContext& rank);

// The same, opened, with its images augmented if the configuration says so. kPlugin when the dataset
// breaks its contract.
Result<HostedDataset> OpenDataset(const RunConfig& config, base::RankContext& rank);

// What a model is asked for to work on `max_samples` samples of this data at once. The tensors of
// `info` are borrowed.
graph::ModelRequest RequestFor(const DatasetInfo& info, int64_t max_samples, bool with_loss);

// The graph of the model that `config` chooses, with what it says of frozen parameters.
Result<graph::Graph> BuildGraph(const RunConfig& config, base::RankContext& rank,
                                graph::ModelRequest request, const graph::OpFactory& ops);

}  // namespace engine::train
