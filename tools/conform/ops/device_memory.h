// Memory of a device between two guards, and a device for ops that bring none.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/device.h"

namespace engine::conform {

constexpr int64_t kDeviceTimeoutMs = 10'000;

// The host as a device: work is done when the call that asks for it returns.
class HostDevice : public DeviceBase {
 public:
  explicit HostDevice(const char* type = "cpu") : type_(type) {}
  const char* type() const noexcept override { return type_; }
  Status Allocate(size_t size_bytes, void** out) noexcept override;
  void Free(void* memory) noexcept override;
  Status Copy(void* target, const void* source, size_t size_bytes, Stream*) noexcept override;
  Status Zero(void* target, size_t size_bytes, Stream*) noexcept override;
  Status CreateStream(Stream** out) noexcept override;
  Status CreateEvent(Event** out) noexcept override;

 private:
  const char* const type_;
};

// Begins at a multiple of 64 bytes that is none of 128, as memory in an arena may. An error of the
// device ends the test.
class DeviceMemory {
 public:
  DeviceMemory(Device* device, Stream* stream, size_t size_bytes, std::byte fill);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  // Ordered on the stream. Its guards, too, are as new.
  void Write(std::span<const std::byte> content);
  void Fill(std::byte value);
  // Queues a copy to the host, which the next two look at once the stream was synchronised.
  void Fetch();
  std::span<const std::byte> content() const;
  bool guards_intact() const;

 private:
  Device* const device_;
  Stream* const stream_;
  const size_t size_bytes_;
  void* block_ = nullptr;
  std::byte* data_ = nullptr;
  std::vector<std::byte> image_;  // guard, content, guard
};

}  // namespace engine::conform
