// Continues a text, or a sequence of tokens, with a trained model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/exec/model_memory.h"
#include "engine/status.h"

namespace engine::run {

struct GenerateOptions {
  int64_t count = 300;       // of bytes or tokens to generate
  double temperature = 0.8;  // 0: always the most likely one
  int32_t top_k = 40;        // choose among so many; 0: among all
  uint64_t seed = 1;
};

// `memory` is a model for inference over tokens: input (1, context) int32, logits (1, context, V), else
// kConfig. `text`, at least one token of [0, V), gets those that follow it; the last `context` count.
Status GenerateTokens(exec::ModelMemory& memory, const GenerateOptions& options,
                      std::vector<int32_t>* text);

// The same over bytes, so V is 256, else kConfig. Returns the bytes that follow `prompt`, which may be
// empty: a newline is taken.
Result<std::string> Generate(exec::ModelMemory& memory, const std::string& prompt,
                             const GenerateOptions& options);

}  // namespace engine::run
