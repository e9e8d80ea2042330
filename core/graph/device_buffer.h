// Owned memory of a device.
#pragma once

#include <cstddef>
#include <utility>

#include "engine/device.h"
#include "engine/ext/shared_memory.h"
#include "engine/status.h"

namespace engine::graph {

class DeviceBuffer {
 public:
  // Zeroed memory; `stream` orders the zeroing. A size of 0 gives a null buffer.
  static Result<DeviceBuffer> Create(Device& device, size_t size_bytes, Stream* stream) {
    DeviceBuffer buffer;
    if (size_bytes == 0) return buffer;
    ENGINE_RETURN_IF_ERROR(device.Allocate(size_bytes, &buffer.data_));
    buffer.device_ = &device;
    buffer.size_bytes_ = size_bytes;
    ENGINE_RETURN_IF_ERROR(device.Zero(buffer.data_, size_bytes, stream));
    return buffer;
  }

  // Zeroed memory that other ranks of this host reach too. `shared` must outlive the buffer.
  static Result<DeviceBuffer> CreateShared(SharedMemory& shared, size_t size_bytes) {
    DeviceBuffer buffer;
    if (size_bytes == 0) return buffer;
    ENGINE_RETURN_IF_ERROR(shared.Allocate(size_bytes, &buffer.data_));
    buffer.shared_ = &shared;
    buffer.size_bytes_ = size_bytes;
    return buffer;
  }

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(shared_, other.shared_);
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ == nullptr) return;
    shared_ != nullptr ? shared_->Free(data_) : device_->Free(data_);
  }

  void* data() const { return data_; }
  float* f32() const { return static_cast<float*>(data_); }
  std::byte* bytes() const { return static_cast<std::byte*>(data_); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  // Whose memory it is: one of the two.
  Device* device_ = nullptr;
  SharedMemory* shared_ = nullptr;
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace engine::graph
