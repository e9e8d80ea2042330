// Memory that is a file: what does not fit is on the disk. And how much does fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/status.h"

namespace engine::checkpoint {

// Of one thread.
class SpillFile {
 public:
  // In the folder of `path`, in files whose names go as soon as they are there.
  explicit SpillFile(std::string path) : path_(std::move(path)) {}
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;

  // Zeros, for as long as this lives. kStorage when the disk has no room for them.
  Result<float*> Allocate(int64_t count);

 private:
  const std::string path_;
  std::vector<std::pair<void*, size_t>> mapped_;
};

// Bytes that this process may still take without swapping: of the machine, and of its control groups
// (version 2). `root`: of the file system.
int64_t FreeMemory(const std::string& root = "");

}  // namespace engine::checkpoint
