// Which activations are made again for the backward pass instead of being kept (T. Chen et al.,
// "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174).
#pragma once

#include <span>
#include <string>

#include "core/graph/graph.h"
#include "engine/status.h"

namespace engine::model {

// Marks blocks: neighbours among the layers whose names begin with one of `prefixes`, up to where what
// follows it, to the next dot, changes. "block" makes one of block0.attn and block0.mlp. Of a block
// what others read is kept, and what layers leave whose state each forward call changes or which
// see all ranks. kConfig names a prefix that fits no layer.
Status MarkRecomputed(std::span<const std::string> prefixes, graph::Graph* graph);

}  // namespace engine::model
