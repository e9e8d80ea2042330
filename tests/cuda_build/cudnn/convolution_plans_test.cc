// The real cuDNN plans convolutions for GPUs that are described to it.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "cudnn_convolution.h"
#include "tests/cuda_build/cudnn/devices.h"
#include "tests/support/matchers.h"

namespace engine::cuda_ops::test {
namespace {

constexpr int64_t kLimit = int64_t{512} << 20;

ConvolutionShape Shape(int64_t size, int64_t channels, int64_t output_channels, int64_t kernel,
                       int64_t stride) {
  return {.samples = 256,
          .height = size,
          .width = size,
          .channels = channels,
          .output_height = size / stride,
          .output_width = size / stride,
          .output_channels = output_channels,
          .kernel_height = kernel,
          .kernel_width = kernel,
          .window = {.stride = {stride, stride}, .padding = {kernel / 2, kernel / 2}}};
}

// In groups; with holes between the taps, which see as far beyond the plane.
ConvolutionShape Grouped(ConvolutionShape shape, int64_t groups) {
  shape.groups = groups;
  return shape;
}
ConvolutionShape Dilated(ConvolutionShape shape, int64_t dilation) {
  shape.window.dilation = {dilation, dilation};
  for (int64_t& padding : shape.window.padding) padding *= dilation;
  return shape;
}

class ConvolutionPlans : public ::testing::TestWithParam<DescribedDevice> {
 protected:
  void SetUp() override { ASSERT_TRUE(cudnn_.Load().ok()) << cudnn_.Load().message(); }

  Status Plan(const ConvolutionShape& shape, int64_t limit = kLimit) {
    return CudnnConvolution::Create(&cudnn_, shape, limit, Json(GetParam()).c_str(), &plan_);
  }

  Cudnn cudnn_;
  std::unique_ptr<CudnnConvolution> plan_;
};

// Layers of residual and mobile nets: single precision with and without tensor cores, and bfloat16.
TEST_P(ConvolutionPlans, AllPassesHaveDeterministicEngines) {
  for (ConvolutionShape shape :
       {Shape(32, 3, 64, 3, 1), Shape(32, 64, 64, 3, 1), Shape(32, 64, 128, 3, 2),
        Shape(32, 64, 128, 1, 2), Grouped(Shape(32, 96, 96, 3, 2), 96),
        Dilated(Grouped(Shape(32, 64, 64, 3, 1), 8), 2)}) {
    for (const int precision : {0, 1, 2}) {
      shape.type = precision == 2 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
      shape.tensor_cores = precision > 0;
      const Status planned = Plan(shape);
      ASSERT_TRUE(planned.ok()) << planned.message();
      printf("%-22s %3lld -> %3lld channels, groups %lld, kernel %lld, %s: %.1f MiB\n",
             GetParam().name, static_cast<long long>(shape.channels),
             static_cast<long long>(shape.output_channels), static_cast<long long>(shape.groups),
             static_cast<long long>(shape.kernel_height),
             precision == 0   ? "float32"
             : precision == 1 ? "tf32"
                              : "bfloat16",
             static_cast<double>(plan_->workspace_bytes()) / (1 << 20));
    }
  }
}

// As the last batch of an epoch, which has the scratch of a full one.
TEST_P(ConvolutionPlans, FewerSamplesFitInTheScratchOfMore) {
  for (const bool tensor_cores : {false, true}) {
    ConvolutionShape shape = Shape(32, 64, 64, 3, 1);
    shape.tensor_cores = tensor_cores;
    ASSERT_TRUE(Plan(shape).ok());
    const int64_t scratch = plan_->workspace_bytes();
    for (const int64_t samples : {255, 80, 1}) {
      shape.samples = samples;
      const Status planned = Plan(shape, scratch);
      EXPECT_TRUE(planned.ok()) << planned.message();
      EXPECT_LE(plan_->workspace_bytes(), scratch);
    }
  }
}

TEST_P(ConvolutionPlans, NoEngineIsASentence) {
  const Status planned = Plan(Shape(32, 64, 64, 3, 1), -1);
  EXPECT_EQ(planned.code(), StatusCode::kUnsupported);
  EXPECT_THAT(planned.message(), AllOf(HasSubstr("forward pass of a convolution of 256 samples"),
                                       HasSubstr("scratch"), HasSubstr("no engine")));
}

INSTANTIATE_TEST_SUITE_P(, ConvolutionPlans, ::testing::Values(kA100, kH100), [](const auto& test) {
  return std::string(test.param.name).substr(7, 4);
});

}  // namespace
}  // namespace engine::cuda_ops::test
