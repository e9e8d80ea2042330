// Memory of a device between two guards, and a device for ops that bring none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <vector>

#include "engine/device.h"

namespace engine::conform {

constexpr int64_t kDeviceTimeoutMs = 10'000;

// The host as a device: work is done when the call that asks for it returns.
class HostDevice : public DeviceBase {
 public:
  explicit HostDevice(const char* type = "cpu") : type_(type) {}
  const char* type() const noexcept override { return type_; }
  Status Allocate(size_t size_bytes, void** out) noexcept override {
    *out = size_bytes < SIZE_MAX / 2 ? std::aligned_alloc(64, (size_bytes / 64 + 1) * 64) : nullptr;
    if (*out != nullptr) return {};
    return Status::Error(StatusCode::kResourceExhausted, "no memory for %zu bytes", size_bytes);
  }
  void Free(void* memory) noexcept override { std::free(memory); }
  Status Copy(void* target, const void* source, size_t size_bytes, Stream*) noexcept override {
    if (size_bytes > 0) std::memcpy(target, source, size_bytes);
    return {};
  }
  Status Zero(void* target, size_t size_bytes, Stream*) noexcept override {
    if (size_bytes > 0) std::memset(target, 0, size_bytes);
    return {};
  }
  Status CreateStream(Stream** out) noexcept override { return New<HostStream>(out); }
  Status CreateEvent(Event** out) noexcept override { return New<HostEvent>(out); }

 private:
  class HostStream final : public StreamBase {
    Status Record(Event*) noexcept override { return {}; }
    Status Wait(Event*) noexcept override { return {}; }
    Status Synchronize(int64_t) noexcept override { return {}; }
    void* native() noexcept override { return nullptr; }
  };
  class HostEvent final : public EventBase {
    Status WaitHost(int64_t) noexcept override { return {}; }
    void* native() noexcept override { return nullptr; }
  };
  template <typename Made, typename As>
  static Status New(As** out) noexcept {
    *out = new (std::nothrow) Made;
    return *out ? Status() : Status::Error(StatusCode::kResourceExhausted, "no memory");
  }

  const char* const type_;
};

// Memory of a device for blocks with guards around them, and what the host knows of it. A block is the
// host's side of it. An error of the device ends the test.
class DeviceMemory {
 public:
  DeviceMemory(Device* device, Stream* stream, size_t capacity_bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;

  // What a block of this size may take.
  static constexpr size_t Taken(size_t size_bytes) { return size_bytes + kGuardBytes + 256; }
  // Begins at a multiple of 64 bytes that is none of 128, as memory in an arena may.
  std::span<std::byte> Add(size_t size_bytes);
  void* OnDevice(std::span<const std::byte> block) const;
  std::byte* OnHost(const void* on_device);

  // All blocks, ordered on the stream.
  void Write();
  // When the work of the stream is done. What differs then from what the host knew has changed.
  void Fetch();
  bool Changed(std::span<const std::byte> block) const { return Changed(block, 0, block.size()); }
  bool ChangedBeside(std::span<const std::byte> block) const {
    return Changed(block, -kAlignment, 0) ||
           Changed(block, block.size(), block.size() + kGuardBytes);
  }

 private:
  static constexpr ptrdiff_t kAlignment = 64;
  static constexpr size_t kGuardBytes = 4096;

  bool Changed(std::span<const std::byte> block, ptrdiff_t begin, size_t end) const;

  Device* const device_;
  Stream* const stream_;
  void* allocated_ = nullptr;
  std::byte* data_ = nullptr;            // on the device, of which
  std::vector<std::byte> now_, before_;  // the host knows this, and knew
  size_t size_bytes_ = 0;                // in use
};

}  // namespace engine::conform
