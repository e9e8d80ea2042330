// How parameters, gradients and optimizer states lie in their arenas: one layout for all of them,
// made of the scheduler's buckets, so that what travels together is contiguous and nothing is copied
// into buckets.
#pragma once

#include <string>
#include <vector>

#include "core/graph/program.h"
#include "engine/scheduler.h"

namespace engine::exec {

constexpr int64_t kAlignElements = 16;  // 64 bytes: a cache line and a vector register

constexpr int64_t RoundUp(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

struct BucketLayout {
  int64_t offset = 0;  // elements from the start of the arena
  int64_t count = 0;   // elements, with the padding between its tensors and at its end (always
                       // zero); of buckets that are scattered a multiple of 16 * world size
  int32_t priority = 0;
  BucketStages stages = BucketStages::kAllReduce;
  // As which parameters are gathered in a sharded run: bfloat16 if that is how ops read all of
  // them.
  DType gathered = DType::kFloat32;
  std::vector<BucketSpan> spans;  // BucketSpan::parameter is an index into FlatLayout::parameters
};

struct FlatLayout {
  std::vector<int32_t> parameters;  // graph parameters in the order their gradients become ready;
      // where buckets are gathered rounded, those of such buckets first
  std::vector<int64_t> offset;  // per graph parameter; those that are not trained come behind
                                // the buckets, and buffers last
  std::vector<BucketLayout> buckets;
  std::vector<std::vector<int32_t>> buckets_of;  // per entry of `parameters`
  int64_t trainable_count = 0;  // elements of the buckets: the size of gradients and states
  int64_t buffer_begin = 0;     // buffers are from here to the end
  int64_t total_count = 0;      // with parameters that are not trained and buffers

  // Where an entry of `parameters` begins.
  int64_t OffsetOf(size_t position) const { return offset[parameters[position]]; }
};

// The trainable parameters in the order in which their gradients become ready, for ModelInfo.
std::vector<ParameterInfo> DescribeParameters(const graph::Graph& graph,
                                              const graph::Program& program);

// Elements at which buckets may be cut inside of a parameter: a cache line for each rank.
constexpr int64_t SliceMultiple(int32_t world_size) {
  return kAlignElements * world_size;
}

// Asks `scheduler` for its plan. kPlugin names the scheduler and the parameter when the buckets do
// not cover every parameter exactly once, in order and contiguously.
Result<FlatLayout> MakeLayout(const graph::Graph& graph, const ModelInfo& model,
                              Scheduler& scheduler, const std::string& scheduler_name);

// A layout without a scheduler, for inference.
FlatLayout InferenceLayout(const graph::Graph& graph);

}  // namespace engine::exec
