// How cuDNN computes an operation graph.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "cudnn_graph.h"
#include "cudnn_library.h"
#include "engine/status.h"

namespace engine::cuda_ops {

// What the engine of a plan may do.
struct EngineLimits {
  bool tensor_cores = true;  // false: products of single precision have its full precision
  int64_t workspace_bytes = std::numeric_limits<int64_t>::max();
};

// A graph in the first engine that cuDNN proposes for it and that the limits allow; never one that
// cuDNN calls nondeterministic.
class CudnnPlan {
 public:
  // `device`: the device to plan for, as JSON; null: that of the handle of `cudnn`, which outlives
  // the plan. kUnsupported, in cuDNN's words: it has no engine for the graph.
  static Status Create(Cudnn* cudnn, const CudnnGraph& graph, const EngineLimits& limits,
                       const char* device, std::unique_ptr<CudnnPlan>* out);
  ~CudnnPlan();
  CudnnPlan(const CudnnPlan&) = delete;
  CudnnPlan& operator=(const CudnnPlan&) = delete;

  int64_t workspace_bytes() const noexcept { return workspace_bytes_; }

  // Only queues. `workspace`: workspace_bytes(), aligned to 16 bytes.
  Status Run(const GraphMemory& memory, void* workspace, cudaStream_t stream) const noexcept;

 private:
  CudnnPlan(Cudnn* cudnn, const CudnnGraph& graph) : cudnn_(*cudnn), graph_(graph) {}

  Cudnn& cudnn_;
  const CudnnGraph graph_;
  cudnnBackendDescriptor_t plan_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace engine::cuda_ops
