#include "tests/emulated_cuda/nccl/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>

namespace fake_nccl {
namespace {

// It goes with the process that holds it.
struct flock LockOf(int rank) {
  return {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

// Those of processes that were killed, and of the process `own`: nobody else would.
void UnlinkLeftovers(int own) {
  std::error_code none;
  for (std::filesystem::directory_iterator entry("/dev/shm", none), end; !none && entry != end;
       entry.increment(none)) {
    const std::string name = entry->path().filename();
    int process = 0;
    if (std::sscanf(name.c_str(), "engine_fake_nccl.%d.", &process) != 1) continue;
    const bool gone = kill(process, 0) != 0 && errno == ESRCH;
    if (gone || process == own) shm_unlink(std::string("/").append(name).c_str());
  }
}

// At the end also what this process has made and no rank has joined.
struct Leftovers {
  Leftovers() { UnlinkLeftovers(0); }
  ~Leftovers() { UnlinkLeftovers(getpid()); }
};

}  // namespace

std::string Segment::MakeName() {
  static const Leftovers leftovers;
  std::random_device random;
  for (int attempt = 0; attempt < 16; ++attempt) {
    char name[64];
    std::snprintf(name, sizeof name, "/engine_fake_nccl.%d.%u", getpid(), random());
    const int descriptor = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (descriptor < 0) continue;
    const bool sized = ftruncate(descriptor, sizeof(Shared)) == 0;
    close(descriptor);
    if (sized) return name;
    shm_unlink(name);
  }
  return {};
}

std::unique_ptr<Segment> Segment::Join(const std::string& name, int rank) {
  std::unique_ptr<Segment> segment(new Segment());
  segment->name_ = name;
  segment->rank_ = rank;
  segment->descriptor_ = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
  if (segment->descriptor_ < 0) return nullptr;
  struct flock lock = LockOf(rank);
  if (fcntl(segment->descriptor_, F_OFD_SETLK, &lock) != 0) return nullptr;
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, segment->descriptor_, 0);
  if (memory == MAP_FAILED) return nullptr;
  segment->shared_ = static_cast<Shared*>(memory);  // zeroes are the start of all its members
  segment->slot(rank).joined.store(1, std::memory_order_release);
  return segment;
}

std::unique_ptr<Segment> Segment::JoinPart(uint64_t split, int color, int rank) const {
  const std::string name = name_ + "." + std::to_string(split) + "." + std::to_string(color);
  const int descriptor = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) return nullptr;
  const bool sized = ftruncate(descriptor, sizeof(Shared)) == 0;
  close(descriptor);
  auto part = sized ? Join(name, rank) : nullptr;
  if (part != nullptr) part->is_part_ = true;
  return part;
}

Segment::~Segment() {
  if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
  if (descriptor_ >= 0) close(descriptor_);
}

bool Segment::Died(int rank) {
  if (rank == rank_ || slot(rank).joined.load() == 0 || slot(rank).left.load() != 0) return false;
  struct flock lock = LockOf(rank);
  return fcntl(descriptor_, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void Segment::Unlink() {
  shm_unlink(name_.c_str());
}

}  // namespace fake_nccl
