// The limits of this process (ulimit), for messages about a resource that it lacks.
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "engine/status.h"

namespace engine::launch {

struct Limit {
  int error;  // of a call that would exceed it; -1: none, it crashes
  __rlimit_resource resource;
  rlim_t unit;       // in which `ulimit` counts
  const char* name;  // of so many units
  const char* flag;  // of ulimit
  int64_t least;     // units without which a run does not even start; 0: any number may do
};

inline constexpr Limit kLimits[] = {
    // Libraries do not survive less of these two, and say so in their own ways: they abort, or wait.
    {EMFILE, RLIMIT_NOFILE, 1, "open files", "-n", 64},
    {-1, RLIMIT_STACK, 1024, "KiB of stack", "-s", 256},
    {EAGAIN, RLIMIT_NPROC, 1, "processes and threads of this user", "-u", 0},
    {ENOMEM, RLIMIT_AS, 1024, "KiB of address space", "-v", 0},
    {ENOMEM, RLIMIT_DATA, 1024, "KiB of data", "-d", 0},
    {EFBIG, RLIMIT_FSIZE, 1024, "KiB in a file", "-f", 0},
};

// In units; -1: there is none. [any-thread], and in a signal handler.
inline int64_t LimitOf(const Limit& limit) noexcept {
  rlimit now{};
  if (getrlimit(limit.resource, &now) != 0 || now.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(now.rlim_cur / limit.unit);
}

// Whether there is no memory for a few more threads, or a library: found by trying. A thread that
// gets none fails with EAGAIN. [any-thread], and in a signal handler.
inline bool MemoryIsOut() noexcept {
  constexpr size_t kTried = size_t{64} << 20;
  void* got = mmap(nullptr, kTried, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return true;
  munmap(got, kTried);
  return false;
}

// A failure for want of a resource, told by the words of the system in its message or by a process
// without memory, as kResourceExhausted with the limit behind it; others as they are. Plugins and
// libraries take it for anything: a peer that is gone, a library that cannot be loaded.
Status WithLimits(const Status& status);

}  // namespace engine::launch
