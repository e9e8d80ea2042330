// A file that the user named, as memory: ranks of one host share it, and only what is read is
// there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "engine/status.h"

namespace engine {

// Mapped read-only until the destructor. A file that is made shorter in the meantime ends the
// process (SIGBUS), as with any mapped file: replace files, do not write into them.
class MappedFile {
 public:
  // Errors of InputFile::Open; kResourceExhausted when it cannot be mapped.
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return bytes_; }  // begins at a multiple of a page

 private:
  explicit MappedFile(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  std::span<const uint8_t> bytes_;
};

}  // namespace engine
