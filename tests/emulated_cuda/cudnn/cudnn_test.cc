// Opening cuDNN, and which of its algorithms are taken, over the fake library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "cudnn_convolution.h"
#include "cudnn_library.h"
#include "tests/emulated_cuda/cudnn/algorithms.h"

namespace engine::cuda_ops {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Cudnn, AMissingLibraryIsNamedWithItsVersionAndTheFix) {
  Cudnn cudnn("libcudnn_that_is_not_there.so.9");
  const Status status = cudnn.Open();
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("needs cuDNN 9"), HasSubstr("libcudnn_that_is_not_there.so.9"),
                    HasSubstr("install cuDNN 9"), HasSubstr("LD_LIBRARY_PATH")));
}

TEST(Cudnn, ALibraryWithoutItsFunctionsIsNamed) {
  Cudnn cudnn("libcudart.so.13");
  const Status status = cudnn.Open();
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), HasSubstr("libcudart.so.13 has no function cudnnGetVersion"));
}

TEST(Cudnn, AnotherVersionIsRefused) {
  Cudnn cudnn("libcudnn_old.so.8");
  const Status status = cudnn.Open();
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("libcudnn_old.so.8 is version 8.9.7"), HasSubstr("version 9")));
}

TEST(Cudnn, OpensOnce) {
  Cudnn cudnn;
  ASSERT_TRUE(cudnn.Open().ok());
  const cudnnHandle_t handle = cudnn.handle();
  ASSERT_NE(handle, nullptr);
  ASSERT_TRUE(cudnn.Open().ok());
  EXPECT_EQ(cudnn.handle(), handle);
}

class Convolution : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(cudnn_.Open().ok()); }

  static constexpr ConvolutionShape kShape = {.samples = 4,
                                              .height = 6,
                                              .width = 5,
                                              .channels = 3,
                                              .output_height = 6,
                                              .output_width = 5,
                                              .output_channels = 2,
                                              .kernel = 3,
                                              .stride = 1,
                                              .padding = 1};

  // The scratch of the algorithms of use for `shape`.
  static size_t Scratch(const ConvolutionShape& shape) {
    const emulated_cuda::ConvolutionProblem problem = {.n = shape.samples};
    return emulated_cuda::AlgorithmOf(emulated_cuda::ConvolutionPass::kBackwardData, problem,
                                      CUDNN_CONVOLUTION_BWD_DATA_ALGO_1)
        .workspace_bytes;
  }

  Cudnn cudnn_;
  std::unique_ptr<CudnnConvolution> convolution_;
};

// Neither those that fail or vary, nor those of more scratch than there is: all are proposed first.
TEST_F(Convolution, TakesTheFirstDeterministicAlgorithmThatFits) {
  const size_t scratch = Scratch(kShape);
  ASSERT_GT(scratch, 0u);
  ASSERT_TRUE(CudnnConvolution::Create(&cudnn_, kShape, size_t{1} << 30, &convolution_).ok());
  EXPECT_EQ(convolution_->workspace_bytes(), scratch);
  ASSERT_TRUE(CudnnConvolution::Create(&cudnn_, kShape, scratch, &convolution_).ok());
  EXPECT_EQ(convolution_->workspace_bytes(), scratch);
}

TEST_F(Convolution, FewerSamplesFitInTheScratchOfMore) {
  ConvolutionShape fewer = kShape;
  fewer.samples = 1;
  ASSERT_TRUE(CudnnConvolution::Create(&cudnn_, fewer, Scratch(kShape), &convolution_).ok());
  EXPECT_LT(convolution_->workspace_bytes(), Scratch(kShape));
}

TEST_F(Convolution, NoAlgorithmIsASentence) {
  const Status status =
      CudnnConvolution::Create(&cudnn_, kShape, Scratch(kShape) - 1, &convolution_);
  EXPECT_EQ(status.code(), StatusCode::kDevice);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("gradient of the input"),
                                      HasSubstr("4 samples of 6 x 5 x 3"), HasSubstr("bytes")));
  EXPECT_EQ(convolution_, nullptr);
}

TEST_F(Convolution, AShapeThatCudnnRefusesIsItsError) {
  ConvolutionShape wrong = kShape;
  wrong.output_height = 7;
  const Status status = CudnnConvolution::Create(&cudnn_, wrong, 0, &convolution_);
  EXPECT_EQ(status.code(), StatusCode::kDevice);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("choosing an algorithm"), HasSubstr("CUDNN_STATUS_BAD_PARAM")));
}

}  // namespace
}  // namespace engine::cuda_ops
