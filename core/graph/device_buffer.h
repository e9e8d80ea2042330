// Owned memory of a device.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/device.h"
#include "engine/ext/shared_memory.h"
#include "engine/status.h"

namespace engine::graph {

inline Status MadeNothing(const Device& device) {
  return Status::Error(StatusCode::kPlugin, "device '%s' reported success and made nothing",
                       device.type());
}

// A stream or an event of a device.
template <typename T>
Status Make(Device& device, std::unique_ptr<T>* made) {
  T* object = nullptr;
  if constexpr (std::is_same_v<T, Stream>) {
    ENGINE_RETURN_IF_ERROR(device.CreateStream(&object));
  } else {
    ENGINE_RETURN_IF_ERROR(device.CreateEvent(&object));
  }
  made->reset(object);
  return object != nullptr ? Status() : MadeNothing(device);
}

class DeviceBuffer {
 public:
  // Zeroed memory for `what`, which an error names; `stream` orders the zeroing. With `shared`, which
  // outlives the buffer, other ranks of this host reach it too. A size of 0 gives a null buffer.
  static Result<DeviceBuffer> Create(Device& device, size_t size_bytes, Stream* stream,
                                     const char* what = "scratch", SharedMemory* shared = nullptr) {
    DeviceBuffer buffer;
    if (size_bytes == 0) return buffer;
    void* memory = nullptr;
    Status made = shared == nullptr ? device.Allocate(size_bytes, &memory)
                                    : shared->Allocate(size_bytes, &memory);
    if (made.ok() && memory == nullptr) made = MadeNothing(device);
    if (made.ok()) {
      buffer.data_ = {static_cast<std::byte*>(memory), Deleter{&device, shared}};
      buffer.size_bytes_ = size_bytes;
      if (shared == nullptr) made = device.Zero(memory, size_bytes, stream);
    }
    if (!made.ok()) return made.WithContext("memory for %s", what);
    return buffer;
  }

  void* data() const { return data_.get(); }
  float* f32() const { return static_cast<float*>(data()); }
  std::byte* bytes() const { return data_.get(); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  struct Deleter {
    Device* device;
    SharedMemory* shared;  // null: the memory is the device's
    void operator()(std::byte* memory) const {
      shared != nullptr ? shared->Free(memory) : device->Free(memory);
    }
  };

  std::unique_ptr<std::byte, Deleter> data_;
  size_t size_bytes_ = 0;
};

}  // namespace engine::graph
