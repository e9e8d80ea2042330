// Memory that transfers are given, where a communicator moves that of a device.
//
// --with names an op plugin; without it all is host memory. Each rank has a device of its own,
// which its op plugin chooses by the local rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/device.h"
#include "engine/ext/shared_memory.h"

namespace engine::conform {

// The device of a rank of this process, or null. It and the op plugin stay until the process ends.
// Ends the process when there is no such plugin or no device. Thread-safe.
Device* DeviceOfRank(int rank);

// Bytes on the device of a rank, not initialised, else zeroes in host memory, which may be that of
// `shared`. Movable: data() stays.
class DeviceBytes {
 public:
  DeviceBytes(int rank, size_t size_bytes, SharedMemory* shared = nullptr);

  uint8_t* data() const { return data_.get(); }  // for transfers
  size_t size() const { return size_; }

  // Both have happened when they return. `bytes` has size() elements. Thread-safe.
  void Set(const std::vector<uint8_t>& bytes);
  std::vector<uint8_t> Get() const;

 private:
  void Copy(void* target, const void* source) const;

  int rank_;
  size_t size_;
  std::unique_ptr<uint8_t, std::function<void(uint8_t*)>> data_;
};

}  // namespace engine::conform
