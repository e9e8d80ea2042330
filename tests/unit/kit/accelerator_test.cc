#include "kit/accelerator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/support/async_accelerator.h"
#include "tests/support/memory_host.h"

namespace engine::kit {
namespace {

TEST(FindKernel, LooksThePluginsKernelUpByName) {
  test::AsyncAccelerator device;
  test::MemoryHost host({}, std::make_shared<test::MemoryStoreTable>(), &device);
  FlatKernel *sgd = nullptr, *again = nullptr, *other = nullptr;
  ASSERT_TRUE(FindKernel(host, "sgd", "sgd", &sgd).ok());
  ASSERT_TRUE(FindKernel(host, "other", "sgd", &again).ok());
  ASSERT_TRUE(FindKernel(host, "adamw", "adamw", &other).ok());
  EXPECT_NE(sgd, nullptr);
  EXPECT_EQ(again, sgd);
  EXPECT_NE(other, sgd);
}

TEST(FindKernel, SaysWhichKernelTheDeviceLacks) {
  test::AsyncAccelerator device;
  test::MemoryHost host({}, std::make_shared<test::MemoryStoreTable>(), &device);
  FlatKernel* kernel = nullptr;
  const Status status = FindKernel(host, "their_opt", "lion", &kernel);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), testing::StartsWith("their_opt needs the kernel 'lion', which the "
                                                    "device '"));
  EXPECT_EQ(kernel, nullptr);
}

TEST(FindKernel, HostMemoryNeedsNone) {
  test::MemoryHost host({}, std::make_shared<test::MemoryStoreTable>());
  FlatKernel* kernel = nullptr;
  EXPECT_TRUE(FindKernel(host, "sgd", "sgd", &kernel).ok());
  EXPECT_EQ(kernel, nullptr);
}

}  // namespace
}  // namespace engine::kit
