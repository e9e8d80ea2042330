// The device that an op plugin brings, and what it offers as an accelerator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "engine/ext/accelerator.h"
#include "tools/conform/contract.h"
#include "tools/conform/ops/device_memory.h"
#include "tools/conform/ops/elements.h"
#include "tools/conform/ops/ops_suite.h"

namespace engine::conform {

std::string BringsNoDevice() {
  return UnderTest().plugin.file().device == "any" ? "it brings no device" : "";
}

std::string IsNoAccelerator() {
  if (const std::string why = BringsNoDevice(); !why.empty()) return why;
  const LoadedOps ops = LoadUnderTest();
  const bool is_one = ops.device() != nullptr && Query<Accelerator>(*ops.device()) != nullptr;
  return is_one ? "" : "its memory is the host's";
}

namespace {

constexpr const char* kHeader = "engine/device.h";
constexpr const char* kAcceleratorHeader = "engine/ext/accelerator.h";

class OpDevice : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(device_, nullptr) << "the descriptor names a device, and there is none";
    Must(device_->CreateStream(&stream_));
    owned_stream_.reset(stream_);
  }

  // An array on the device, and what is in it.
  template <typename T>
  T* Put(const std::vector<T>& values) {
    Array& array = arrays_.emplace_back(device_, stream_, std::as_bytes(std::span(values)));
    return static_cast<T*>(array.memory.OnDevice(array.content));
  }
  template <typename T>
  std::vector<T> Get(const T* data) {
    const auto is_it = [&](const Array& array) {
      return array.memory.OnDevice(array.content) == data;
    };
    Array& array = *std::ranges::find_if(arrays_, is_it);
    array.memory.Fetch();
    EXPECT_FALSE(array.memory.ChangedBeside(array.content)) << "wrote beside its target";
    std::vector<T> values(array.content.size() / sizeof(T));
    std::memcpy(values.data(), array.content.data(), array.content.size());
    return values;
  }

  const LoadedOps ops_ = LoadUnderTest();
  Device* const device_ = ops_.device();
  Stream* stream_ = nullptr;
  std::unique_ptr<Stream> owned_stream_;

 private:
  struct Array {
    Array(Device* device, Stream* stream, std::span<const std::byte> bytes)
        : memory(device, stream, DeviceMemory::Taken(bytes.size())),
          content(memory.Add(bytes.size())) {
      std::ranges::copy(bytes, content.begin());
      memory.Write();
    }
    DeviceMemory memory;
    const std::span<std::byte> content;
  };
  std::deque<Array> arrays_;  // a deque does not move its elements
};

TEST_F(OpDevice, IsThatOfTheDescriptor) {
  CONTRACT(MUST, "engine/plugin.h", "The device of the descriptor is Device::type().");
  EXPECT_EQ(device_->type(), UnderTest().plugin.file().device);
}

TEST_F(OpDevice, GivesAlignedMemory) {
  CONTRACT(MUST, kHeader, "Memory is aligned to at least 64 bytes, and the caller's until Free.");
  std::vector<void*> blocks;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{65}, size_t{4096}, size_t{5} << 20}) {
    void* memory = nullptr;
    Must(device_->Allocate(size, &memory));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u) << size;
    Must(device_->Zero(memory, size, stream_));
    EXPECT_THAT(blocks, testing::Not(testing::Contains(memory)));
    blocks.push_back(memory);
  }
  Must(stream_->Synchronize(kDeviceTimeoutMs));
  for (void* memory : blocks) device_->Free(memory);
}

TEST_F(OpDevice, SaysHowMuchMemoryIsMissing) {
  CONTRACT(MUST, kHeader,
           "More memory than there is gives kResourceExhausted, which names the size.");
  for (const size_t size : {SIZE_MAX, SIZE_MAX / 2}) {
    void* memory = nullptr;
    const Status status = device_->Allocate(size, &memory);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), testing::HasSubstr(std::to_string(size)));
  }
}

TEST_F(OpDevice, WorksInTheOrderOfTheStream) {
  CONTRACT(MUST, kHeader, "Copies and Zero touch the bytes they name, in the order of the stream.");
  std::vector<uint8_t> bytes(100);
  std::iota(bytes.begin(), bytes.end(), uint8_t{1});
  uint8_t* const first = Put(bytes);
  uint8_t* const second = Put(std::vector<uint8_t>(100));
  Must(device_->Copy(second, first, 100, stream_));
  Must(device_->Zero(second, 3, stream_));
  Must(device_->Copy(second, nullptr, 0, stream_));
  EXPECT_EQ(Get(first), bytes);
  std::fill(bytes.begin(), bytes.begin() + 3, uint8_t{0});
  EXPECT_EQ(Get(second), bytes);
}

TEST_F(OpDevice, OrdersStreamsByEvents) {
  CONTRACT(MUST, kHeader,
           "What is queued on a stream after Wait starts after what was queued on another before "
           "Record; WaitHost ends when that is done.");
  Stream* other = nullptr;
  Must(device_->CreateStream(&other));
  const std::unique_ptr<Stream> owned_other(other);
  Event* event = nullptr;
  Must(device_->CreateEvent(&event));
  const std::unique_ptr<Event> owned(event);
  std::vector<float> numbers(1 << 16);
  float* const target = Put(numbers);
  for (int round = 1; round <= 3; ++round) {
    std::ranges::fill(numbers, static_cast<float>(round));
    const float* const source = Put(numbers);
    Must(stream_->Record(event));
    Must(other->Wait(event));
    Must(device_->Copy(target, source, numbers.size() * sizeof(float), other));
    Must(other->Record(event));
    Must(event->WaitHost(kDeviceTimeoutMs));
    EXPECT_EQ(Get(target), numbers);
  }
}

class OpAccelerator : public OpDevice {
 protected:
  Accelerator& accelerator() { return *Query<Accelerator>(*device_); }
};

TEST_F(OpAccelerator, LendsHostMemory) {
  CONTRACT(MUST, kAcceleratorHeader,
           "AllocateHost gives host memory that copies read and write after Copy has returned.");
  std::vector<float> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  void* memory = nullptr;
  Must(accelerator().AllocateHost(4000, &memory));
  std::memcpy(memory, numbers.data(), 4000);
  float* const target = Put(std::vector<float>(1000));
  Must(device_->Copy(target, memory, 4000, stream_));
  EXPECT_EQ(Get(target), numbers);
  accelerator().FreeHost(memory);
  accelerator().FreeHost(nullptr);
}

TEST_F(OpAccelerator, RecordsAndReplays) {
  CONTRACT(MUST, kAcceleratorHeader,
           "What is queued on a stream while it records is not done, but by each Launch.");
  const float* const source = Put(std::vector<float>(100, 3.0f));
  float* const target = Put(std::vector<float>(100));
  Must(stream_->Synchronize(kDeviceTimeoutMs));
  Must(accelerator().BeginRecording(stream_));
  Must(accelerator().math().Add(target, source, 100, stream_));
  Recording* recording = nullptr;
  Must(accelerator().EndRecording(stream_, &recording));
  const std::unique_ptr<Recording> owned(recording);
  EXPECT_EQ(Get(target), std::vector<float>(100, 0.0f));
  Must(recording->Launch(stream_));
  Must(recording->Launch(stream_));
  EXPECT_EQ(Get(target), std::vector<float>(100, 6.0f));
}

TEST_F(OpAccelerator, FillsQuotients) {
  CONTRACT(MUST, kAcceleratorHeader,
           "FillQuotient: scales[i] = factor / *divisor, or factor where the divisor is 0, for "
           "`count` scales.");
  for (const float divisor : {0.0f, 0.5f, 8.0f}) {
    float* const scales = Put(std::vector<float>(7));
    Must(accelerator().math().FillQuotient(Put(std::vector{divisor}), 3.0f, scales, 7, stream_));
    EXPECT_EQ(Get(scales), std::vector<float>(7, divisor > 0 ? 3.0f / divisor : 3.0f));
  }
}

TEST_F(OpAccelerator, Converts) {
  CONTRACT(MUST, kAcceleratorHeader,
           "Convert rounds between float32 and 16 bits to nearest, ties to even; kUnsupported for "
           "types that it does not know.");
  const std::vector<float> numbers = {0,          -1.5f,  1.00390625f, 1.01171875f,
                                      3.1415926f, -65504, 1e-3f};
  const auto count = static_cast<int64_t>(numbers.size());
  const float* const source = Put(numbers);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<uint16_t> want(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) WriteElement(dtype, want.data(), i, numbers[i]);
    uint16_t* const halves = Put(std::vector<uint16_t>(numbers.size()));
    const Status status =
        accelerator().math().Convert(source, DType::kFloat32, halves, dtype, count, stream_);
    if (status.code() == StatusCode::kUnsupported) continue;
    Must(status);
    EXPECT_EQ(Get(halves), want) << Name(dtype);
  }
  EXPECT_EQ(accelerator()
                .math()
                .Convert(source, DType::kInt32, Put(numbers), DType::kUint8, 1, stream_)
                .code(),
            StatusCode::kUnsupported);
}

TEST_F(OpAccelerator, KnowsItsKernels) {
  CONTRACT(MUST, kAcceleratorHeader, "FindKernel gives null for a name that it does not know.");
  EXPECT_EQ(accelerator().math().FindKernel("no_such_kernel"), nullptr);
  Must(accelerator().Fault());
}

}  // namespace
}  // namespace engine::conform
