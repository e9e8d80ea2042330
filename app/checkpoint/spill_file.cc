// Room on the disk is taken before anything is written: a mapping that finds none would be SIGBUS.
#include "app/checkpoint/spill_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "kit/unique_fd.h"

namespace engine::checkpoint {
namespace {

// The number behind `word` in a file of the kernel, or that at its beginning; -1: there is none.
int64_t NumberIn(const std::string& path, const std::string& word) {
  std::ifstream file(path);
  std::string before;
  while (before != word && file >> before) {
  }
  int64_t number = 0;
  return file >> number ? number : -1;
}

}  // namespace

Result<float*> SpillFile::Allocate(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  if (bytes == 0) return nullptr;
  // As an AtomicFile names its own, so that the next one of this path removes what a killed process left.
  std::filesystem::path path = path_;
  std::string name = path.replace_filename("." + path.filename().native() + ".tmp.XXXXXX");
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

// A limit holds for all groups below it, and counts caches that give way.
int64_t FreeMemory(const std::string& root) {
  const int64_t kib = NumberIn(root + "/proc/meminfo", "MemAvailable:");
  int64_t free = kib < 0 ? std::numeric_limits<int64_t>::max() : kib * 1024;
  std::string group;  // "0::/outer/inner"
  std::ifstream(root + "/proc/self/cgroup") >> group;
  if (!group.starts_with("0::/")) return free;
  const std::filesystem::path groups = root + "/sys/fs/cgroup";
  for (auto at = groups / group.substr(4); at.native().size() >= groups.native().size();
       at = at.parent_path()) {
    const int64_t limit = NumberIn(at / "memory.max", "");  // or "max"
    if (limit < 0) continue;
    const int64_t caches = NumberIn(at / "memory.stat", "inactive_file");
    free = std::min(free, limit - NumberIn(at / "memory.current", "") + caches);
  }
  return free;
}

}  // namespace engine::checkpoint
