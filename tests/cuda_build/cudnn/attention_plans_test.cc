// Who computes attention where cuDNN cannot.
#include <gtest/gtest.h>

#include <memory>
#include <string_view>

#include "cudnn_attention.h"
#include "tests/support/matchers.h"
#include "tests/support/memory_host.h"

namespace engine::cuda_ops::test {
namespace {

class AttentionChoice : public ::testing::Test {
 protected:
  static constexpr AttentionShape kShape = {4, 128, 12, 64, true};

  Status Find(std::string_view attention, bool bfloat16 = true) {
    const OptionValue values[] = {
        {.name = "attention", .type = OptionType::kEnum, .string = attention},
        {.name = "deterministic", .type = OptionType::kBool, .integer = 1}};
    Cudnn cudnn("libcudnn_that_is_not_there.so.9");
    AttentionPlans plans(&cudnn, Options(values), &host_);
    ENGINE_RETURN_IF_ERROR(plans.Find(kShape, bfloat16, &passes_));
    return plans.Find(kShape, bfloat16, &passes_);
  }

  engine::test::MemoryHost host_{{}, std::make_shared<engine::test::MemoryStoreTable>()};
  const AttentionPasses* passes_ = nullptr;
};

TEST_F(AttentionChoice, AutoTakesOwnKernelsAndSaysOnceWhy) {
  EXPECT_TRUE(Find("auto").ok());
  EXPECT_THAT(host_.log(), ElementsAre(AllOf(HasSubstr("attention: own kernels"),
                                             HasSubstr("libcudnn_that_is_not_there.so.9"))));
}

TEST_F(AttentionChoice, CudnnIsAnErrorWithItsReason) {
  const Status status = Find("cudnn");
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cuda_ops.attention=cudnn"), HasSubstr("auto"),
                                      HasSubstr("libcudnn_that_is_not_there.so.9")));
  EXPECT_THAT(host_.log(), IsEmpty());
}

TEST_F(AttentionChoice, CudnnIsForBfloat16) {
  const Status status = Find("cudnn", false);
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  EXPECT_THAT(status.message(), HasSubstr("cuda_ops.precision=bf16"));
  EXPECT_TRUE(Find("auto", false).ok());
  EXPECT_THAT(host_.log(), IsEmpty());
}

TEST_F(AttentionChoice, OwnDoesNotLookForCudnn) {
  EXPECT_TRUE(Find("own").ok());
  EXPECT_EQ(passes_, nullptr);
  EXPECT_THAT(host_.log(), IsEmpty());
}

}  // namespace
}  // namespace engine::cuda_ops::test
