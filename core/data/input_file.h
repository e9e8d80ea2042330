// Opening and reading a file that the user named.
#pragma once

#include <cstdint>
#include <string>

#include "engine/status.h"

namespace engine {

// A regular file, open for reading; closed by the destructor.
class InputFile {
 public:
  // kMissingInput with the reason of the system; kBadData when it is no regular file (a FIFO is
  // refused, not waited for).
  static Result<InputFile> Open(const std::string& path);
  InputFile(InputFile&& other) noexcept : fd_(other.fd_), size_bytes_(other.size_bytes_) {
    other.fd_ = -1;
  }
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  int fd() const { return fd_; }
  int64_t size_bytes() const { return size_bytes_; }  // when it was opened
  // Gives the descriptor away.
  int Release();

 private:
  InputFile(int fd, int64_t size_bytes) : fd_(fd), size_bytes_(size_bytes) {}
  int fd_;
  int64_t size_bytes_;
};

// The content of a file; kBadData when it is larger than `limit_bytes`.
Result<std::string> ReadFile(const std::string& path, int64_t limit_bytes);

}  // namespace engine
