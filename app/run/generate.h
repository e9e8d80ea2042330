// Continues a text with a trained model.
#pragma once

#include <cstdint>
#include <string>

#include "core/exec/model_memory.h"
#include "engine/status.h"

namespace engine::run {

struct GenerateOptions {
  int64_t bytes = 300;       // to generate
  double temperature = 0.8;  // 0: always the most likely byte
  int32_t top_k = 40;        // choose among so many; 0: among all
  uint64_t seed = 1;
};

// `memory` is a model for inference over bytes: input (1, context) int32, logits (1, context, 256).
// Returns the bytes that follow `prompt`, which may be empty (a newline is taken) and of which the
// last `context` bytes count.
Result<std::string> Generate(exec::ModelMemory& memory, const std::string& prompt,
                             const GenerateOptions& options);

}  // namespace engine::run
