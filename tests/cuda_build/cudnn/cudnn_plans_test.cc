// The real cuDNN plans attention for GPUs that are described to it: no GPU is needed. What it takes
// and how much scratch it wants is printed.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "cudnn_attention.h"
#include "tests/cuda_build/cudnn/devices.h"
#include "tests/cuda_build/cudnn/fake_libcuda.h"
#include "tests/support/matchers.h"
#include "tests/support/memory_host.h"

namespace engine::cuda_ops::test {
namespace {

constexpr int64_t kMiB = 1 << 20;

class CudnnPlans : public ::testing::TestWithParam<DescribedDevice> {
 protected:
  void SetUp() override { ASSERT_TRUE(cudnn_.Load().ok()) << cudnn_.Load().message(); }

  struct Planned {
    Status status;
    int64_t workspace_bytes = -1;
    std::string kernel;
  };

  Planned Plan(const AttentionGraph& graph) {
    std::unique_ptr<CudnnAttention> plan;
    Planned planned = {CudnnAttention::Create(&cudnn_, graph, Json(GetParam()).c_str(), &plan)};
    if (planned.status.ok()) {
      planned.workspace_bytes = plan->workspace_bytes();
      planned.kernel = FakeLibcudaLastKernel();
      const AttentionShape& of = graph.shape;
      printf("%-22s %2d x %2d x %4d x %3d %s: %7.1f MiB, %s\n", GetParam().name, of.batch, of.heads,
             of.length, of.head_size, graph.dq < 0 ? "forward " : "backward",
             static_cast<double>(planned.workspace_bytes) / kMiB, planned.kernel.c_str());
    }
    return planned;
  }

  // The generation that kernels of this device are for.
  std::string Architecture() const {
    return "sm" + std::to_string(GetParam().capability / 10) + "_flash_";
  }

  Cudnn cudnn_;
};

constexpr AttentionShape kGpt2 = {64, 1024, 12, 64, true};
constexpr AttentionShape kShapes[] = {
    kGpt2,
    {4, 1024, 12, 64, true},
    {1, 1024, 12, 64, true},
    {64, 1024, 6, 128, true},
    {4, 96, 12, 64, true},
    {4, 1000, 6, 128, true},
    {4, 1024, 12, 64, false},
};

TEST_P(CudnnPlans, ForwardNeedsAsGoodAsNoScratch) {
  for (const AttentionShape& shape : kShapes) {
    const Planned planned = Plan(AttentionForwardGraph(shape));
    ASSERT_TRUE(planned.status.ok()) << planned.status.message();
    EXPECT_LE(planned.workspace_bytes, 4096);
    EXPECT_THAT(planned.kernel, HasSubstr(Architecture() + "fprop"));
  }
}

// Sums of dq in single precision; the kernels for sm_80 keep a second copy.
TEST_P(CudnnPlans, BackwardNeedsScratchOfTheSizeOfDq) {
  for (const AttentionShape& shape : kShapes) {
    const Planned planned = Plan(AttentionBackwardGraph(shape, false));
    ASSERT_TRUE(planned.status.ok()) << planned.status.message();
    const int64_t dq_bytes = shape.row_offset(shape.batch, 0) * 4;
    EXPECT_GE(planned.workspace_bytes, dq_bytes);
    EXPECT_LE(planned.workspace_bytes, 2 * dq_bytes + kMiB);
    EXPECT_THAT(planned.kernel, HasSubstr(Architecture() + "bprop"));
  }
}

// In bfloat16, of lengths that are multiples of a tile: what makes it slow.
TEST_P(CudnnPlans, DeterministicBackwardKeepsTheGradientsOfAllScores) {
  for (const AttentionShape& shape : {kGpt2, AttentionShape{4, 1000, 6, 128, true}}) {
    const Planned planned = Plan(AttentionBackwardGraph(shape, true));
    ASSERT_TRUE(planned.status.ok()) << planned.status.message();
    const int64_t heads = int64_t{shape.batch} * shape.heads;
    const int64_t tiled = (shape.length + 127) / 128 * 128;
    EXPECT_GE(planned.workspace_bytes, heads * shape.length * shape.length * 2);
    EXPECT_LE(planned.workspace_bytes, heads * tiled * tiled * 2 + kMiB);
    EXPECT_THAT(planned.kernel, HasSubstr(Architecture() + "bprop"));
  }
}

// 8 has to divide the size of a head.
TEST_P(CudnnPlans, AHeadThatCudnnDoesNotTakeIsASentence) {
  for (const AttentionGraph& graph : {AttentionForwardGraph({4, 128, 12, 36, true}),
                                      AttentionBackwardGraph({4, 128, 12, 36, true}, false)}) {
    const Planned planned = Plan(graph);
    EXPECT_EQ(planned.status.code(), StatusCode::kUnsupported);
    EXPECT_THAT(planned.status.message(),
                AllOf(HasSubstr("attention of 4 x 12 heads of 36 columns, 128 positions"),
                      HasSubstr("cuDNN has no engine for the graph")));
  }
}

TEST_P(CudnnPlans, AnOldLibraryIsNamedWithItsVersion) {
  EXPECT_TRUE(cudnn_.CheckVersion(90600).ok());
  const Status status = cudnn_.CheckVersion(99900);
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("cuDNN 9.99.0 or later"), HasSubstr("libcudnn.so.9 is version 9.")));
}

// As many multiprocessors as the H100, and more memory.
TEST(CudnnPlansForH200, AreThoseForH100) {
  Cudnn cudnn;
  ASSERT_TRUE(cudnn.Load().ok());
  std::unique_ptr<CudnnAttention> plan;
  for (const AttentionGraph& graph :
       {AttentionForwardGraph(kGpt2), AttentionBackwardGraph(kGpt2, false)}) {
    ASSERT_TRUE(CudnnAttention::Create(&cudnn, graph, Json(kH100).c_str(), &plan).ok());
    const std::string kernel = FakeLibcudaLastKernel();
    ASSERT_TRUE(CudnnAttention::Create(&cudnn, graph, Json(kH200).c_str(), &plan).ok());
    EXPECT_EQ(FakeLibcudaLastKernel(), kernel);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudnnPlans, ::testing::Values(kA100, kH100), [](const auto& test) {
  return std::string(test.param.name).substr(7, 4);
});

}  // namespace
}  // namespace engine::cuda_ops::test
