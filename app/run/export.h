// `engine export`: a trained model, for other programs.
#pragma once

#include <string>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "app/config/config.h"
#include "app/weights/export_model.h"
#include "core/base/rank_context.h"
#include "engine/status.h"

namespace engine::run {

struct ExportFiles {
  std::string safetensors, onnx;  // empty: not written
  int64_t batch = 0;              // samples that the ONNX model takes at once; 0: any number
  bool fold_batch_norm = false;
};

// Writes the files, and returns what their user has to know, in sentences. The data need not be there,
// unless it alone knows what a sample is like. Arguments are borrowed.
Result<std::vector<std::string>> ExportModel(const checkpoint::OpenedCheckpoint& checkpoint,
                                             const config::Config& config, base::RankContext& rank,
                                             const ExportFiles& files);

}  // namespace engine::run
