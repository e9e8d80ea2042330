#include "tools/conform/ops/device_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tools/conform/plugin_under_test.h"

namespace engine::conform {
namespace {

constexpr size_t kGuardBefore = 64, kGuardBehind = 4096;
constexpr std::byte kGuard{0xa5};

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
Status New(As** out) noexcept {
  *out = new (std::nothrow) Made;
  return *out != nullptr ? Status() : Status::Error(StatusCode::kResourceExhausted, "no memory");
}

}  // namespace

Status HostDevice::Allocate(size_t size_bytes, void** out) noexcept {
  *out = std::aligned_alloc(64, (size_bytes / 64 + 1) * 64);
  if (*out != nullptr) return {};
  return Status::Error(StatusCode::kResourceExhausted, "no memory for %zu bytes", size_bytes);
}
void HostDevice::Free(void* memory) noexcept {
  std::free(memory);
}
Status HostDevice::Copy(void* target, const void* source, size_t size_bytes, Stream*) noexcept {
  if (size_bytes > 0) std::memcpy(target, source, size_bytes);
  return {};
}
Status HostDevice::Zero(void* target, size_t size_bytes, Stream*) noexcept {
  if (size_bytes > 0) std::memset(target, 0, size_bytes);
  return {};
}
Status HostDevice::CreateStream(Stream** out) noexcept {
  return New<HostStream>(out);
}
Status HostDevice::CreateEvent(Event** out) noexcept {
  return New<HostEvent>(out);
}

DeviceMemory::DeviceMemory(Device* device, Stream* stream, size_t size_bytes, std::byte fill)
    : device_(device),
      stream_(stream),
      size_bytes_(size_bytes),
      image_(kGuardBefore + size_bytes + kGuardBehind, kGuard) {
  Must(device_->Allocate(image_.size() + 2 * kGuardBefore, &block_));
  auto* const block = static_cast<std::byte*>(block_);
  data_ = block + kGuardBefore;
  if (reinterpret_cast<uintptr_t>(data_) % 128 == 0) data_ += kGuardBefore;
  Fill(fill);
}

DeviceMemory::~DeviceMemory() {
  device_->Free(block_);
}

void DeviceMemory::Write(std::span<const std::byte> content) {
  std::ranges::fill(image_, kGuard);
  std::ranges::copy(content, image_.begin() + kGuardBefore);
  Must(device_->Copy(data_ - kGuardBefore, image_.data(), image_.size(), stream_));
}

void DeviceMemory::Fill(std::byte value) {
  Write(std::vector(size_bytes_, value));
}

void DeviceMemory::Fetch() {
  Must(device_->Copy(image_.data(), data_ - kGuardBefore, image_.size(), stream_));
}

std::span<const std::byte> DeviceMemory::content() const {
  return std::span(image_).subspan(kGuardBefore, size_bytes_);
}

bool DeviceMemory::guards_intact() const {
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  const auto content = image_.begin() + kGuardBefore;
  return std::all_of(image_.begin(), content, is_guard) &&
         std::all_of(content + static_cast<ptrdiff_t>(size_bytes_), image_.end(), is_guard);
}

}  // namespace engine::conform
