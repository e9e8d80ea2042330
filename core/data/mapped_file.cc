#include "core/data/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/data/input_file.h"

namespace engine {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  ENGINE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  const size_t size = static_cast<size_t>(file.size_bytes());
  if (size == 0) return MappedFile({});  // which mmap refuses
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (mapped == MAP_FAILED) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot map '%s': %s", path.c_str(),
                         std::strerror(errno));
  }
  return MappedFile({static_cast<const uint8_t*>(mapped), size});
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace engine
