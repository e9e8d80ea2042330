// A trained model with the data that its configuration names: no communication, no optimizer's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "app/config/config.h"
#include "app/data/dataset_source.h"
#include "app/weights/made_ops.h"
#include "core/base/rank_context.h"
#include "core/exec/model_memory.h"
#include "core/plugin/rank_plugins.h"

namespace engine::run {

struct TrainedModel {
  // Each may use those before it.
  std::unique_ptr<plugin::PluginSelection> chosen;  // those that a forward pass needs
  std::unique_ptr<data::DatasetSource> data;
  std::vector<SampleTensor> targets;  // as the model has them, in the order of the data
  std::unique_ptr<plugin::RankPlugins> plugins;
  std::unique_ptr<weights::MadeOps> ops;      // of the graph
  graph::Graph graph;                         // of DescribeModel
  std::unique_ptr<exec::ModelMemory> memory;  // of LoadModel: with the parameters of the checkpoint
};

struct ModelUse {
  int64_t samples = 1;     // at most so many in a forward pass
  bool with_loss = false;  // else a graph for inference
  bool reads_data = true;  // false: only if its options do not tell what a sample is
};

// All but the memory: ops say what shapes they make, and compute nothing. All three arguments are
// borrowed. kMissingInput says how to name the data. With a loss classes have to
// be called as in the checkpoint, else kConfig; without one they are those of the checkpoint, if it names
// any: data to predict may have others, or none.
Result<TrainedModel> DescribeModel(const checkpoint::OpenedCheckpoint& checkpoint,
                                   const config::Config& config, base::RankContext& rank,
                                   const ModelUse& use);

// The same, ready for forward passes.
Result<TrainedModel> LoadModel(const checkpoint::OpenedCheckpoint& checkpoint,
                               const config::Config& config, base::RankContext& rank,
                               const ModelUse& use);

}  // namespace engine::run
