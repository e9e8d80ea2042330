// Checkpoints: parameters and optimizer state of a run in one safetensors file
// (docs/checkpoint.md).
#pragma once

#include <cstdint>
#include <string>

#include "core/exec/executor.h"
#include "core/exec/model_memory.h"
#include "core/storage/safetensors.h"
#include "engine/status.h"

namespace engine {

struct CheckpointInfo {
  int64_t step = 0;
  std::string config;  // as Config::Print gives it
  std::string optimizer;
};

// Writes every parameter and optimizer state; see WriteSafetensors for what a failure leaves
// behind.
Status WriteCheckpoint(const std::string& path, const Executor& executor,
                       const CheckpointInfo& info);

// Opens a checkpoint. kBadData when the file is a safetensors file but no checkpoint of ours.
struct OpenedCheckpoint {
  std::unique_ptr<SafetensorsFile> file;
  CheckpointInfo info;
};
Result<OpenedCheckpoint> OpenCheckpoint(const std::string& path);

// Copies the parameters of the file into `memory`. kBadData names the parameter that is missing or
// has another shape.
Status LoadParameters(const SafetensorsFile& file, ModelMemory& memory);

}  // namespace engine
