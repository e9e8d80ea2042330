#include "core/data/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <utility>

namespace engine {

Result<InputFile> InputFile::Open(const std::string& path) {
  InputFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), 0);
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

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

int InputFile::Release() {
  return std::exchange(fd_, -1);
}

Result<std::string> ReadFile(const std::string& path, int64_t limit_bytes) {
  constexpr size_t kChunkBytes = 1 << 16;
  ENGINE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  const size_t limit = static_cast<size_t>(limit_bytes);
  std::string content;
  // The file may have changed since it was opened: its end is where read() says so.
  while (file.size_bytes() <= limit_bytes && content.size() <= limit) {
    const size_t used = content.size();
    content.resize(used + kChunkBytes);
    const ssize_t got = read(file.fd(), content.data() + used, kChunkBytes);
    if (got < 0 && errno != EINTR) {
      return Status::Error(StatusCode::kMissingInput, "cannot read '%s': %s", path.c_str(),
                           std::strerror(errno));
    }
    content.resize(used + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return content;
  }
  return Status::Error(StatusCode::kBadData, "%s: larger than the limit of %" PRId64 " bytes",
                       path.c_str(), limit_bytes);
}

}  // namespace engine
