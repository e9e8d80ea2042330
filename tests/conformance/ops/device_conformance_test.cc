// The device that an op plugin brings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/conformance/ops/op_rig.h"

namespace engine::test {
namespace {

class DeviceConformance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    device_ = ops_.library->device();
    if (device_ == nullptr) GTEST_SKIP() << "this library brings no device";
    ASSERT_TRUE(device_->CreateStream(&stream_).ok());
    owned_stream_.reset(stream_);
  }

  const LoadedOps ops_ = LoadedOps::Load(GetParam(), 1);
  Device* device_ = nullptr;
  Stream* stream_ = nullptr;
  std::unique_ptr<Stream> owned_stream_;
};

TEST_P(DeviceConformance, TypeIsThatOfTheDescriptor) {
  EXPECT_EQ(device_->type(), ops_.plugin.file().device);
}

TEST_P(DeviceConformance, MemoryIsAlignedAndItsOwn) {
  std::vector<void*> blocks;
  for (size_t size : {size_t{0}, size_t{1}, size_t{65}, size_t{4096}, size_t{5} << 20}) {
    void* memory = nullptr;
    const Status status = device_->Allocate(size, &memory);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u) << size;
    EXPECT_TRUE(device_->Zero(memory, size, stream_).ok());
    EXPECT_THAT(blocks, ::testing::Not(::testing::Contains(memory)));
    blocks.push_back(memory);
  }
  EXPECT_TRUE(stream_->Synchronize(10'000).ok());
  for (void* memory : blocks) device_->Free(memory);
}

TEST_P(DeviceConformance, MoreMemoryThanThereIsIsAnErrorThatNamesTheSize) {
  for (size_t size : {SIZE_MAX, SIZE_MAX / 2}) {
    void* memory = nullptr;
    const Status status = device_->Allocate(size, &memory);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), ::testing::HasSubstr(std::to_string(size)));
  }
}

TEST_P(DeviceConformance, CopyAndZeroWorkInOrder) {
  DeviceMemory first(device_, 100), second(device_, 100);
  std::vector<std::byte> bytes(100);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  first.Write(bytes.data(), bytes.size());
  ASSERT_TRUE(device_->Copy(second.data(), first.data(), 100, stream_).ok());
  ASSERT_TRUE(device_->Zero(second.data(), 3, stream_).ok());
  ASSERT_TRUE(device_->Copy(second.data(), nullptr, 0, stream_).ok());
  ASSERT_TRUE(stream_->Synchronize(10'000).ok());
  std::fill(bytes.begin(), bytes.begin() + 3, std::byte{0});
  EXPECT_EQ(second.Read(), bytes);
  EXPECT_TRUE(first.guard_intact());
  EXPECT_TRUE(second.guard_intact());
}

TEST_P(DeviceConformance, EventsAreReached) {
  Event* event = nullptr;
  ASSERT_TRUE(device_->CreateEvent(&event).ok());
  const std::unique_ptr<Event> owned(event);
  EXPECT_TRUE(stream_->Record(event).ok());
  EXPECT_TRUE(stream_->Wait(event).ok());
  EXPECT_TRUE(event->WaitHost(10'000).ok());
}

INSTANTIATE_TEST_SUITE_P(, DeviceConformance, ::testing::ValuesIn(PluginPaths({"cpu_ops"})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
