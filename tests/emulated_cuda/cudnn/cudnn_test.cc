// What is said of a cuDNN that cannot be used.
#include <gtest/gtest.h>

#include <vector>

#include "cudnn_library.h"
#include "tests/support/matchers.h"

namespace engine::cuda_ops {
namespace {

TEST(Cudnn, ALibraryThatCannotBeUsedIsNamedWithTheReasonAndTheFix) {
  const struct {
    const char* library;
    std::vector<const char*> words;
  } cases[] = {
      {"libcudnn_that_is_not_there.so.9",
       {"needs cuDNN 9", "libcudnn_that_is_not_there.so.9", "install cuDNN 9", "LD_LIBRARY_PATH"}},
      {"libcudart.so.13", {"libcudart.so.13 has no function cudnnGetVersion"}},
      {"libcudnn_old.so.8", {"libcudnn_old.so.8 is version 8.9.7", "version 9"}},
  };
  for (const auto& one : cases) {
    Cudnn cudnn(one.library);
    const Status status = cudnn.Open();
    EXPECT_EQ(status.code(), StatusCode::kPlugin);
    for (const char* words : one.words) EXPECT_THAT(status.message(), HasSubstr(words));
  }
}

}  // namespace
}  // namespace engine::cuda_ops
