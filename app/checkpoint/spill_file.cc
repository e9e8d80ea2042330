// Room on the disk is taken before anything is written: a mapping that finds none would be SIGBUS.
#include "app/checkpoint/spill_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kit/unique_fd.h"

namespace engine::checkpoint {

Result<float*> SpillFile::Allocate(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  if (bytes == 0) return nullptr;
  std::string name = path_ + ".spill.XXXXXX";
  const kit::UniqueFd fd(mkostemp(name.data(), O_CLOEXEC));
  int error = fd ? 0 : errno;
  if (fd) unlink(name.c_str());
  if (error == 0) error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    return Status::Error(StatusCode::kStorage,
                         "no room beside '%s' for %zu bytes of what plugins keep on each rank: %s",
                         path_.c_str(), bytes, std::strerror(error));
  }
  mapped_.emplace_back(memory, bytes);
  return static_cast<float*>(memory);
}

SpillFile::~SpillFile() {
  for (const auto& [memory, bytes] : mapped_) munmap(memory, bytes);
}

}  // namespace engine::checkpoint
