#include "kit/accelerator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/support/async_accelerator.h"
#include "tests/support/memory_host.h"

namespace engine::kit {
namespace {

TEST(FindKernel, LooksThePluginsKernelUpByNameOrSaysThatItIsMissing) {
  test::AsyncAccelerator device;
  test::MemoryHost host({}, std::make_shared<test::MemoryStoreTable>(), &device);
  FlatKernel *sgd = nullptr, *other = nullptr, *none = nullptr;
  ASSERT_TRUE(FindKernel(host, "sgd", "sgd", &sgd).ok());
  ASSERT_TRUE(FindKernel(host, "adamw", "adamw", &other).ok());
  EXPECT_NE(sgd, nullptr);
  EXPECT_NE(other, sgd);
  const Status status = FindKernel(host, "their_opt", "lion", &none);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), testing::StartsWith("their_opt needs the kernel 'lion', which the "
                                                    "device '"));
  EXPECT_EQ(none, nullptr);
}

TEST(FindKernel, HostMemoryNeedsNone) {
  test::MemoryHost host;
  FlatKernel* kernel = nullptr;
  EXPECT_TRUE(FindKernel(host, "sgd", "sgd", &kernel).ok());
  EXPECT_EQ(kernel, nullptr);
}

}  // namespace
}  // namespace engine::kit
