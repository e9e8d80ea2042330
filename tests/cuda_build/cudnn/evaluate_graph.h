// What an operation graph computes, by its definition and in double precision.
#pragma once

#include <functional>

#include "cudnn_graph.h"

namespace engine::cuda_ops::test {

// What `memory` holds: doubles, or numbers of the types of the tensors (float32 and bfloat16).
enum class GraphNumbers { kDoubles, kTyped };

// Elements from the first to the last.
int64_t CountOf(const GraphTensor& tensor);

// Ends the process at what it does not know. `between` is called after each operation.
void EvaluateGraph(
    const CudnnGraph& graph, const GraphMemory& memory, GraphNumbers numbers,
    const std::function<void()>& between = [] {});

}  // namespace engine::cuda_ops::test
