// Where every tensor of a program lies, and the order that this forces.
#pragma once

#include <cstddef>
#include <vector>

#include "core/graph/program.h"

namespace engine::graph {

using StorageId = int32_t;

enum class StorageKind {
  kArena,              // at `offset` of the activation arena
  kInput,              // a tensor of the batch, at `offset` of the arena of those
  kParameter,          // `index` = parameter
  kParameterGradient,  // `index` = parameter
  kLoss,               // the output of the loss op: the statistics of the step
  kSeed,               // the gradient of the loss
};

struct Storage {
  StorageKind kind = StorageKind::kArena;
  int32_t index = kNone;
  size_t size_bytes = 0;
  size_t offset = 0;          // kArena, kInput
  int32_t first = INT32_MAX;  // instructions that touch it
  int32_t last = -1;
};

struct MemoryPlan {
  std::vector<Storage> storages;
  std::vector<StorageId> of_value;
  std::vector<StorageId> of_gradient;
  std::vector<StorageId> of_saved;  // per forward call (Instruction::forward); kNone: saves nothing
  size_t arena_bytes = 0;
  size_t input_bytes = 0;
  size_t workspace_bytes = 0;  // the largest of all calls: the compute lane runs one at a time
  // Per instruction the earlier ones that must be done before it: because they make what it reads,
  // or because it overwrites (in place, by accumulation, or by reuse of memory) what they read. Any
  // order that keeps these gives the result of the sequential one, bit for bit.
  std::vector<std::vector<int32_t>> depends_on;
};

// Shares memory where values may alias (views, in-place ops, gradients passed through) and where
// lifetimes in sequential order do not overlap. The logits stay readable until the end of the
// forward pass.
MemoryPlan PlanMemory(const Graph& graph, const Program& program);

}  // namespace engine::graph
