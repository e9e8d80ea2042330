#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

namespace engine::shm {
namespace {

// Without these a peer that shrinks its memory would kill those that map it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status NoMemory(size_t size_bytes) noexcept {
  return Status::Error(StatusCode::kResourceExhausted, "no shared memory of %zu bytes: %s",
                       size_bytes, std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<Segment>> Segment::Create(size_t size_bytes, const char* label) noexcept {
  // The kernel would take all the memory there is before it says that it is not enough.
  const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES));
  if (size_bytes / static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) >= pages) {
    errno = ENOMEM;
    return NoMemory(size_bytes);
  }
  std::unique_ptr<Segment> made(new (std::nothrow) Segment);
  if (!made) return NoMemory(size_bytes);
  made->descriptor_ = kit::UniqueFd(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int descriptor = made->descriptor();
  if (descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(size_bytes)) == 0 &&
      fcntl(descriptor, F_ADD_SEALS, kSeals) == 0 && made->MapPages(descriptor, size_bytes)) {
    return made;
  }
  return NoMemory(size_bytes);
}

// The size is that of the memory, not what the peer says of it; sealed, it stays what it is. So no
// access within `size_bytes` can end in SIGBUS, whatever the peer does.
Result<std::unique_ptr<Segment>> Segment::Map(kit::UniqueFd descriptor,
                                              size_t size_bytes) noexcept {
  struct stat about = {};
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  const bool usable = seals >= 0 && (seals & kSeals) == kSeals &&
                      fstat(descriptor.get(), &about) == 0 &&
                      about.st_size == static_cast<off_t>(size_bytes);
  if (!usable) {
    return Status::Error(StatusCode::kRendezvous, "not %zu bytes of sealed shared memory",
                         size_bytes);
  }
  std::unique_ptr<Segment> made(new (std::nothrow) Segment);
  if (made && made->MapPages(descriptor.get(), size_bytes)) return made;
  return NoMemory(size_bytes);
}

// Maps all pages now, large ones where the system allows it; false when there is no memory for them.
bool Segment::MapPages(int descriptor, size_t size_bytes) noexcept {
  void* const data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return false;
  data_ = static_cast<uint8_t*>(data);
  size_ = size_bytes;
  madvise(data, size_bytes, MADV_HUGEPAGE);  // a hint
  if (madvise(data, size_bytes, MADV_POPULATE_WRITE) == 0) return true;
  // Linux before 5.14: pages are there, and are mapped when they are used first.
  return errno == EINVAL && fallocate(descriptor, 0, 0, static_cast<off_t>(size_bytes)) == 0;
}

Segment::~Segment() {
  if (data_) munmap(data_, size_);
}

}  // namespace engine::shm
