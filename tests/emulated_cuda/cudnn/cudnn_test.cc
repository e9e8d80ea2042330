// What is said of a cuDNN that cannot be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cudnn_library.h"

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

}  // namespace
}  // namespace engine::cuda_ops
