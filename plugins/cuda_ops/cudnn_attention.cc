#include "cudnn_attention.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <new>

namespace engine::cuda_ops {
namespace {

// Earlier versions want sums of dq that are cleared (before 9.6), have no right results (9.10.0),
// or gradients only where 128 divides the length (before 9.16).
constexpr size_t kMinCudnn = 91600;

constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16, kFloat32 = CUDNN_DATA_FLOAT;

// The layouts of AttentionShape, as strides of (batch, heads, length, head size).
struct Layouts {
  GraphExtents rows, packed, plain, by_head, numbers;
  float scale;  // of scores

  explicit Layouts(const AttentionShape& of)
      : rows{of.batch, of.heads, of.length, of.head_size},
        packed{of.length * of.packed_width(), of.head_size, of.packed_width(), 1},
        plain{of.length * of.width(), of.head_size, of.width(), 1},
        by_head{of.length * of.width(), int64_t{of.length} * of.head_size, of.head_size, 1},
        numbers{of.statistics_offset(1, 0), of.length, 1, 1},
        scale(1 / std::sqrt(static_cast<float>(of.head_size))) {}

  int Input(CudnnGraph* graph, const GraphExtents& strides) const {
    return graph->Input(rows, strides, kBf16);
  }
  // A right factor: cuDNN knows the pattern by keys (and, backward, values) that are transposed as
  // inputs.
  int Right(CudnnGraph* graph) const {
    return graph->Input(Transposed(rows), Transposed(packed), kBf16);
  }
};

// q k' * scale, less what a query must not see.
int Scores(const AttentionGraph& of, int scale, CudnnGraph* graph) {
  const int scores = graph->Map(CUDNN_POINTWISE_MUL, graph->Multiply(of.q, of.k), scale);
  if (!of.shape.causal) return scores;
  const int query = graph->Index(scores, 2), key = graph->Index(scores, 3);
  return graph->Map(CUDNN_POINTWISE_BINARY_SELECT, scores,
                    graph->Scalar(-std::numeric_limits<float>::infinity()),
                    graph->Map(CUDNN_POINTWISE_CMP_GE, query, key));
}

}  // namespace

AttentionGraph AttentionForwardGraph(const AttentionShape& shape) {
  const Layouts layouts(shape);
  AttentionGraph of = {.shape = shape};
  CudnnGraph& graph = of.graph;
  of.q = layouts.Input(&graph, layouts.packed);
  of.k = layouts.Right(&graph);
  of.v = layouts.Input(&graph, layouts.packed);
  const int scores = Scores(of, graph.Scalar(layouts.scale), &graph);
  const int largest = graph.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores);
  const int shifted = graph.Map(CUDNN_POINTWISE_SUB, scores, largest);
  const int powers = graph.Map(CUDNN_POINTWISE_EXP, shifted);
  const int sums = graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, powers);
  of.log_sums = graph.Map(CUDNN_POINTWISE_ADD, largest, graph.Map(CUDNN_POINTWISE_LOG, sums));
  graph.Store(of.log_sums, layouts.numbers, kFloat32);
  const int p = graph.Map(CUDNN_POINTWISE_DIV, powers, sums);
  graph.Round(p, kBf16);
  of.y = graph.Multiply(p, of.v);
  graph.Store(of.y, layouts.plain, kBf16);
  return of;
}

AttentionGraph AttentionBackwardGraph(const AttentionShape& shape, bool deterministic) {
  const Layouts layouts(shape);
  AttentionGraph of = {.shape = shape};
  CudnnGraph& graph = of.graph;
  of.q = layouts.Input(&graph, layouts.packed);
  of.k = layouts.Right(&graph);
  of.v = layouts.Right(&graph);
  of.y = layouts.Input(&graph, layouts.plain);
  of.dy = layouts.Input(&graph, layouts.plain);
  of.log_sums = graph.Input({shape.batch, shape.heads, shape.length, 1}, layouts.numbers, kFloat32);
  const int scale = graph.Scalar(layouts.scale);

  // The sum over a row of y dy. The factor stands where dropout's would: without it cuDNN takes a
  // kernel with more scratch.
  const int products = graph.Map(CUDNN_POINTWISE_MUL, of.dy, of.y);
  of.delta = graph.Map(CUDNN_POINTWISE_MUL, graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, products),
                       graph.Scalar(1));
  graph.Store(of.delta, layouts.numbers, kFloat32);

  const int logs = graph.Map(CUDNN_POINTWISE_SUB, Scores(of, scale, &graph), of.log_sums);
  const int p = graph.Map(CUDNN_POINTWISE_EXP, logs);
  // What is multiplied is in bfloat16, as it is stored.
  const auto rounded = [&](int tensor) {
    const int transposed = graph.Transpose(tensor);
    graph.Round(transposed, kBf16);
    return transposed;
  };
  of.dv = graph.Multiply(rounded(p), of.dy);
  graph.Store(of.dv, layouts.packed, kBf16);

  const int dp = graph.Map(CUDNN_POINTWISE_SUB, graph.Multiply(of.dy, of.v), of.delta);
  const int ds = graph.Map(CUDNN_POINTWISE_MUL, graph.Map(CUDNN_POINTWISE_MUL, dp, p), scale);
  of.dk = graph.Multiply(rounded(ds), of.q);
  graph.Store(of.dk, layouts.packed, kBf16);

  // Sums in memory are what cuDNN has a kernel for Hopper for.
  of.dq = graph.Multiply(ds, graph.Transpose(of.k));
  if (!deterministic) {
    of.dq_sums = of.dq;
    graph.Store(of.dq_sums, layouts.by_head, kFloat32);
    of.dq = graph.Map(CUDNN_POINTWISE_IDENTITY, of.dq_sums);
  }
  graph.Store(of.dq, layouts.packed, kBf16);
  return of;
}

Status CudnnAttention::Create(Cudnn* cudnn, AttentionGraph graph, const char* device,
                              std::unique_ptr<CudnnAttention>* out) {
  ENGINE_RETURN_IF_ERROR(cudnn->CheckVersion(kMinCudnn));
  std::unique_ptr<CudnnAttention> own(new CudnnAttention(std::move(graph)));
  const AttentionShape& of = own->graph_.shape;
  ENGINE_RETURN_IF_ERROR(
      CudnnPlan::Create(cudnn, own->graph_.graph, {}, device, &own->plan_)
          .WithContext("%s of %d x %d heads of %d columns, %d positions",
                       own->graph_.dq < 0 ? "attention" : "gradient of attention", of.batch,
                       of.heads, of.head_size, of.length));
  if (own->graph_.dq_sums >= 0) own->dq_sums_bytes_ = of.row_offset(of.batch, 0) * 4;
  *out = std::move(own);
  return {};
}

Status CudnnAttention::Run(const AttentionBackwardCall<__nv_bfloat16>& call, void* workspace,
                           cudaStream_t stream) const noexcept {
  return plan_->Run(graph_.Memory(call, workspace),
                    static_cast<std::byte*>(workspace) + dq_sums_bytes_, stream);
}

Status AttentionPlans::Find(const AttentionShape& shape, bool bfloat16,
                            const AttentionPasses** passes) noexcept try {
  const bool can_plan = bfloat16 && shape.length > 1;  // cuDNN's frontend refuses one position
  if (own_ || (!can_plan && !must_plan_)) return {};
  if (!can_plan) {
    return Status::Error(StatusCode::kConfig,
                         "cuda_ops.attention=cudnn is for bfloat16 and two positions or more; set "
                         "cuda_ops.precision=bf16, or cuda_ops.attention=auto");
  }
  const auto [found, is_new] = passes_.try_emplace(
      Key(shape.batch, shape.length, shape.heads, shape.head_size, shape.causal));
  if (is_new) {
    const Status planned = Plan(shape, &found->second);
    if (!planned.ok() && must_plan_) {
      passes_.erase(found);
      return planned.WithContext("cuda_ops.attention=cudnn (auto takes own kernels instead)");
    }
    if (!std::exchange(logged_, true)) {
      const AttentionPasses& taken = found->second;
      const char* const what = taken.backward ? "attention: forward and backward pass by cuDNN"
                               : taken.forward
                                   ? "attention: forward pass by cuDNN, backward by own kernels"
                                   : "attention: own kernels";
      host_.Log(LogLevel::kInfo, planned.ok() ? what : planned.WithContext("%s", what).message());
    }
  }
  *passes = &found->second;
  return {};
} catch (const std::bad_alloc&) {
  return Status::Error(StatusCode::kResourceExhausted, "no memory for a plan of attention");
}

// Where a run has to repeat to the bit, our own backward pass is the default: that of cuDNN then
// writes and reads the gradients of all scores.
Status AttentionPlans::Plan(const AttentionShape& shape, AttentionPasses* passes) {
  ENGINE_RETURN_IF_ERROR(cudnn_.Open());
  ENGINE_RETURN_IF_ERROR(
      CudnnAttention::Create(&cudnn_, AttentionForwardGraph(shape), nullptr, &passes->forward));
  if (deterministic_ && !must_plan_) return {};
  return CudnnAttention::Create(&cudnn_, AttentionBackwardGraph(shape, deterministic_), nullptr,
                                &passes->backward);
}

}  // namespace engine::cuda_ops
