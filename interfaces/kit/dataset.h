// Parts to build datasets from: files and the share that is held out.
// Compiled into the plugin that includes it and no part of the ABI.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "engine/dataset.h"

namespace engine::kit {

// A regular file that the user named, open for reading.
class InputFile {
 public:
  // kMissingInput with the reason of the system; kBadData when it is no regular file (a FIFO is
  // refused, not waited for).
  static Result<InputFile> Open(const std::string& path) {
    InputFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat info {};
    if (file.fd_ < 0 || fstat(file.fd_, &info) != 0) {
      return Status::Error(StatusCode::kMissingInput, "cannot open '%s': %s", path.c_str(),
                           std::strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
      return Status::Error(StatusCode::kBadData, "%s: not a regular file", path.c_str());
    }
    file.size_bytes_ = info.st_size;
    return file;
  }
  InputFile(InputFile&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), size_bytes_(other.size_bytes_) {}
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }
  int64_t size_bytes() const { return size_bytes_; }  // when it was opened
  int Release() { return std::exchange(fd_, -1); }    // gives the descriptor away

 private:
  explicit InputFile(int fd) : fd_(fd) {}
  int fd_;
  int64_t size_bytes_ = 0;
};

// A file as memory, read-only: ranks of one host share it, and only what is read is there. A file
// that is made shorter in the meantime ends the process (SIGBUS), as with any mapped file: replace
// files, do not write into them.
class MappedFile {
 public:
  // Errors of InputFile::Open; kResourceExhausted when it cannot be mapped.
  static Result<MappedFile> Open(const std::string& path) {
    ENGINE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
    const auto size = static_cast<size_t>(file.size_bytes());
    if (size == 0) return MappedFile({});  // which mmap refuses
    void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
    if (mapped == MAP_FAILED) {
      return Status::Error(StatusCode::kResourceExhausted, "cannot map '%s': %s", path.c_str(),
                           std::strerror(errno));
    }
    return MappedFile({static_cast<const uint8_t*>(mapped), size});
  }
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
  }

  std::span<const uint8_t> bytes() const { return bytes_; }  // begins at a multiple of a page

 private:
  explicit MappedFile(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  std::span<const uint8_t> bytes_;
};

// Runs what may throw std::bad_alloc, as reading a large file may: kResourceExhausted then.
template <typename Body>
Status CatchNoMemory(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted, "out of memory while the data was read");
  }
}

// `key` is the name of the share in the configuration.
inline Status CheckHoldout(const char* key, double share) {
  if (share >= 0 && share < 1) return {};
  return Status::Error(StatusCode::kConfig, "%s is %g; it must be at least 0 and less than 1", key,
                       share);
}

// How many of `size` are held out for evaluation, to the nearest.
inline int64_t HoldoutCount(int64_t size, double share) {
  return std::llround(static_cast<double>(size) * share);
}

// Of samples that lie in several places one after the other, `ends[i]` being the number of those in
// the first i + 1 of them: in which one sample `index` is, and what number it has there.
inline std::pair<size_t, int64_t> Locate(std::span<const int64_t> ends, int64_t index) {
  const auto place =
      static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
  return {place, index - (place == 0 ? 0 : ends[place - 1])};
}

}  // namespace engine::kit
