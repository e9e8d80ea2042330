#include "tools/conform/ops/device_memory.h"

#include "tools/conform/plugin_under_test.h"

namespace engine::conform {

// As a number it is so large that what reads it shows.
constexpr std::byte kGuard{0x7f};

DeviceMemory::DeviceMemory(Device* device, Stream* stream, size_t capacity_bytes)
    : device_(device), stream_(stream), now_(capacity_bytes, kGuard) {
  Must(device_->Allocate(now_.size() + 128, &allocated_));
  data_ = static_cast<std::byte*>(allocated_);
  data_ += 128 - reinterpret_cast<uintptr_t>(data_) % 128;
}

DeviceMemory::~DeviceMemory() {
  device_->Free(allocated_);
}

std::span<std::byte> DeviceMemory::Add(size_t size_bytes) {
  const size_t begin = (size_bytes_ + 127) / 128 * 128 + kAlignment;
  size_bytes_ = begin + size_bytes + kGuardBytes;
  ENGINE_CHECK(size_bytes_ <= now_.size(), "%zu bytes of %zu", size_bytes_, now_.size());
  return std::span(now_).subspan(begin, size_bytes);
}

void* DeviceMemory::OnDevice(std::span<const std::byte> block) const {
  return data_ + (block.data() - now_.data());
}

std::byte* DeviceMemory::OnHost(const void* on_device) {
  return now_.data() + (static_cast<const std::byte*>(on_device) - data_);
}

void DeviceMemory::Write() {
  Must(device_->Copy(data_, now_.data(), size_bytes_, stream_));
}

void DeviceMemory::Fetch() {
  before_ = now_;
  Must(device_->Copy(now_.data(), data_, size_bytes_, stream_));
  Must(stream_->Synchronize(kDeviceTimeoutMs));
}

bool DeviceMemory::Changed(std::span<const std::byte> block, ptrdiff_t begin, size_t end) const {
  const ptrdiff_t at = block.data() - now_.data() + begin;
  // Bytes of an enumeration: std::equal takes them one by one.
  return std::memcmp(now_.data() + at, before_.data() + at, end - static_cast<size_t>(begin)) != 0;
}

}  // namespace engine::conform
