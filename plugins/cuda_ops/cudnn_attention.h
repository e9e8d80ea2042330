// Attention in bfloat16 by cuDNN, which has fused kernels for the patterns of operations below; and
// the choice between it and our own kernels.
#pragma once

#include <cuda_bf16.h>

#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "cudnn_plan.h"
#include "engine/host.h"
#include "engine/options.h"
#include "kernels/attention.h"

namespace engine::cuda_ops {

// A pass as a graph, and which of its tensors are in memory (-1: the pass has no such).
struct AttentionGraph {
  AttentionShape shape;
  CudnnGraph graph = {};
  int q = -1, k = -1, v = -1, y = -1, log_sums = -1;
  int dy = -1, delta = -1, dq_sums = -1, dq = -1, dk = -1, dv = -1;

  // Where they are in a call of the kernels. T is the element of qkv.
  template <typename T>
  GraphMemory Memory(const AttentionBackwardCall<T>& call, void* dq_sums_data) const noexcept {
    const auto of_part = [&](const T* packed, QkvPart part) {
      return packed == nullptr ? packed : packed + shape.packed_offset(0, 0, part);
    };
    const std::pair<int, const void*> places[] = {{q, of_part(call.qkv, QkvPart::kQuery)},
                                                  {dq, of_part(call.dqkv, QkvPart::kQuery)},
                                                  {k, of_part(call.qkv, QkvPart::kKey)},
                                                  {dk, of_part(call.dqkv, QkvPart::kKey)},
                                                  {v, of_part(call.qkv, QkvPart::kValue)},
                                                  {dv, of_part(call.dqkv, QkvPart::kValue)},
                                                  {y, call.y},
                                                  {dy, call.dy},
                                                  {log_sums, call.log_sums},
                                                  {delta, call.delta},
                                                  {dq_sums, dq_sums_data}};
    GraphMemory memory = {};
    for (const auto& [tensor, data] : places) {
      if (tensor >= 0) memory[static_cast<size_t>(tensor)] = const_cast<void*>(data);
    }
    return memory;
  }
};

// y and log_sums of qkv.
AttentionGraph AttentionForwardGraph(const AttentionShape& shape);
// The gradient of qkv. cuDNN sums dq in memory, in single precision and in any order; or keeps the
// gradients of all scores and multiplies them (deterministic).
AttentionGraph AttentionBackwardGraph(const AttentionShape& shape, bool deterministic);

// A pass that cuDNN has planned.
class CudnnAttention {
 public:
  // As CudnnPlan::Create; kPlugin when cuDNN is too old.
  static Status Create(Cudnn* cudnn, AttentionGraph graph, const char* device,
                       std::unique_ptr<CudnnAttention>* out);

  int64_t workspace_bytes() const noexcept { return dq_sums_bytes_ + plan_->workspace_bytes(); }

  // Writes y and log_sums, or dqkv and delta, of `call`; cannot add. `workspace`: aligned to 16
  // bytes.
  Status Run(const AttentionBackwardCall<__nv_bfloat16>& call, void* workspace,
             cudaStream_t stream) const noexcept;

 private:
  explicit CudnnAttention(AttentionGraph graph) noexcept : graph_(std::move(graph)) {}

  const AttentionGraph graph_;
  std::unique_ptr<CudnnPlan> plan_;
  int64_t dq_sums_bytes_ = 0;
};

// Null: a pass for our own kernels.
struct AttentionPasses {
  std::unique_ptr<CudnnAttention> forward, backward;
};

// What cuDNN computes: one for all ops of a device, called by one thread at a time.
class AttentionPlans {
 public:
  // Options `attention` and `deterministic` of the plugin.
  AttentionPlans(Cudnn* cudnn, const Options& options, Host* host) noexcept
      : cudnn_(*cudnn),
        own_(options.String("attention") == "own"),
        must_plan_(options.String("attention") == "cudnn"),
        deterministic_(options.Bool("deterministic")),
        host_(*host) {}

  // Plans at the first call with a shape; leaves `passes` where there is none. An error only where
  // the user wants cuDNN in any case.
  Status Find(const AttentionShape& shape, bool bfloat16, const AttentionPasses** passes) noexcept;

 private:
  using Key = std::tuple<int32_t, int32_t, int32_t, int32_t, bool>;

  Status Plan(const AttentionShape& shape, AttentionPasses* passes);

  Cudnn& cudnn_;
  const bool own_, must_plan_, deterministic_;
  Host& host_;
  bool logged_ = false;
  std::map<Key, AttentionPasses> passes_;
};

}  // namespace engine::cuda_ops
