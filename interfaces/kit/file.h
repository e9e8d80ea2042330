// Files to read: opened with care, or mapped. Compiled into whoever includes it and no part of the
// ABI.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::kit {

// A regular file that the user named, open for reading.
class InputFile {
 public:
  // kMissingInput with the reason of the system; kBadData when it is no regular file (a FIFO is
  // refused, not waited for).
  static Result<InputFile> Open(const std::string& path) {
    InputFile file(UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)));
    struct stat info {};
    if (!file.fd_ || fstat(file.fd(), &info) != 0) {
      return Status::Error(StatusCode::kMissingInput, "cannot open '%s': %s", path.c_str(),
                           std::strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
      return Status::Error(StatusCode::kBadData, "%s: not a regular file", path.c_str());
    }
    file.size_bytes_ = info.st_size;
    return file;
  }

  int fd() const { return fd_.get(); }
  int64_t size_bytes() const { return size_bytes_; }  // when it was opened
  int Release() { return fd_.Release(); }             // gives the descriptor away

 private:
  explicit InputFile(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
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

}  // namespace engine::kit
