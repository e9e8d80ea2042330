// On a GPU: attention by cuDNN against our own kernels, at lengths and numbers of heads of real
// models. Part of cuda_attention_device (tests/gpu).
#include <gtest/gtest.h>

#include <memory>

#include "cudnn_attention.h"
#include "tests/emulated_cuda/attention/attention_values.h"

namespace engine::cuda_ops::test {
namespace {

// Both round to bfloat16, each in its way.
constexpr double kBf16Difference = 8e-3, kFloatDifference = 1e-5;

class CudnnAttentionDevice : public ::testing::TestWithParam<AttentionShape> {
 protected:
  CudnnAttentionDevice()
      : qkv_(RandomValues<Bf16>(rows() * shape().packed_width(), 1.0, 1)),
        dy_(RandomValues<Bf16>(rows() * shape().width(), 1.0, 2)) {}
  void SetUp() override { ASSERT_TRUE(cudnn_.Open().ok()) << cudnn_.Open().message(); }

  static const AttentionShape& shape() { return GetParam(); }
  static int64_t rows() { return int64_t{shape().batch} * shape().length; }

  // What the passes write.
  struct Pass {
    Array<Bf16> y{Size(rows() * shape().width())}, dqkv{Size(rows() * shape().packed_width())};
    Array<float> log_sums{Size(rows() * shape().heads)}, delta{Size(rows() * shape().heads)};
  };

  AttentionBackwardCall<Bf16> Call(const Pass& pass) const {
    return {.qkv = qkv_.data(),
            .y = pass.y.data(),
            .log_sums = pass.log_sums.data(),
            .dy = dy_.data(),
            .dqkv = pass.dqkv.data(),
            .delta = pass.delta.data()};
  }

  void RunOwn(const Pass& pass) const {
    ASSERT_EQ(
        LaunchFlashForward(shape(), qkv_.data(), pass.y.data(), pass.log_sums.data(), nullptr),
        cudaSuccess);
    ASSERT_EQ(LaunchFlashBackward(shape(), Call(pass), nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  void RunCudnn(bool deterministic, const Pass& pass) {
    for (const AttentionGraph& graph :
         {AttentionForwardGraph(shape()), AttentionBackwardGraph(shape(), deterministic)}) {
      std::unique_ptr<CudnnAttention> plan;
      const Status planned = CudnnAttention::Create(&cudnn_, graph, nullptr, &plan);
      ASSERT_TRUE(planned.ok()) << planned.message();
      const Array<float> workspace(Size(plan->workspace_bytes() / 4 + 1));
      const Status run = plan->Run(Call(pass), workspace.data(), nullptr);
      ASSERT_TRUE(run.ok()) << run.message();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }

  const Array<Bf16> qkv_, dy_;
  Cudnn cudnn_;
};

TEST_P(CudnnAttentionDevice, AgreesWithOurKernels) {
  Pass own;
  RunOwn(own);
  for (const bool deterministic : {false, true}) {
    Pass cudnn;
    RunCudnn(deterministic, cudnn);
    EXPECT_LE(Difference(ToDoubles(cudnn.y.Read()), ToDoubles(own.y.Read())), kBf16Difference);
    EXPECT_LE(Difference(ToDoubles(cudnn.log_sums.Read()), ToDoubles(own.log_sums.Read())),
              kFloatDifference);
    EXPECT_LE(Difference(ToDoubles(cudnn.dqkv.Read()), ToDoubles(own.dqkv.Read())),
              kBf16Difference);
  }
}

TEST_P(CudnnAttentionDevice, DeterministicRunsAreBitwiseEqual) {
  Pass first, second;
  RunCudnn(true, first);
  RunCudnn(true, second);
  EXPECT_EQ(ToDoubles(first.y.Read()), ToDoubles(second.y.Read()));
  EXPECT_EQ(first.log_sums.Read(), second.log_sums.Read());
  EXPECT_EQ(ToDoubles(first.dqkv.Read()), ToDoubles(second.dqkv.Read()));
}

INSTANTIATE_TEST_SUITE_P(, CudnnAttentionDevice,
                         ::testing::Values(AttentionShape{4, 1024, 12, 64, true},
                                           AttentionShape{1, 1024, 12, 64, false},
                                           AttentionShape{2, 1000, 6, 128, true},
                                           AttentionShape{3, 96, 12, 64, true}),
                         [](const auto& test) {
                           return "Samples" + std::to_string(test.param.batch) + "Length" +
                                  std::to_string(test.param.length) + "Head" +
                                  std::to_string(test.param.head_size) +
                                  (test.param.causal ? "Causal" : "Full");
                         });

}  // namespace
}  // namespace engine::cuda_ops::test
