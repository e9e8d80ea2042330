// A piece of memory without a name that several processes map. It is gone when the last of them is,
// however they end: there is nothing to clean up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::shm {

class Segment {
 public:
  // New memory of zeroes; all of it is there, so a lack of memory shows here and not as a signal
  // later. `label` is what /proc/PID/maps calls it. kResourceExhausted.
  static Result<std::unique_ptr<Segment>> Create(size_t size_bytes, const char* label) noexcept;

  // The memory of another rank. Refuses memory that is not of this size or that its owner could
  // take away again (kRendezvous).
  static Result<std::unique_ptr<Segment>> Map(kit::UniqueFd descriptor, size_t size_bytes) noexcept;

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  uint8_t* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  int descriptor() const noexcept { return descriptor_.get(); }  // of a new one; of others -1

 private:
  Segment() noexcept = default;
  bool MapPages(int descriptor, size_t size_bytes) noexcept;

  // Constant when Create or Map returns.
  kit::UniqueFd descriptor_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace engine::shm
