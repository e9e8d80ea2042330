// NCCL, opened at run time.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>
#include <utility>

#include "engine/status.h"
#include "kit/describe.h"

namespace engine::nccl {

// 22809 -> "2.28.9"
kit::Text VersionText(int nccl_version) noexcept;

// What this plugin calls. Those of the second list may be null: they are newer than the least
// version or may be left out of a build.
#define ENGINE_NCCL_REQUIRED(X) \
  X(GetVersion)                 \
  X(GetUniqueId)                \
  X(GetErrorString)             \
  X(GetLastError)               \
  X(CommInitRankConfig)         \
  X(CommGetAsyncError)          \
  X(CommFinalize)               \
  X(CommDestroy)                \
  X(CommAbort)                  \
  X(AllReduce)                  \
  X(ReduceScatter)              \
  X(AllGather)                  \
  X(Broadcast)
#define ENGINE_NCCL_OPTIONAL(X) \
  X(CommInitRankScalable)       \
  X(CommSplit)                  \
  X(GroupStart)                 \
  X(GroupEnd)                   \
  X(MemAlloc)                   \
  X(MemFree)                    \
  X(CommRegister)               \
  X(CommDeregister)             \
  X(CommWindowRegister)         \
  X(CommWindowDeregister)

struct Functions {
#define ENGINE_NCCL_MEMBER(name) decltype(&::nccl##name) name = nullptr;
  ENGINE_NCCL_REQUIRED(ENGINE_NCCL_MEMBER)
  ENGINE_NCCL_OPTIONAL(ENGINE_NCCL_MEMBER)
#undef ENGINE_NCCL_MEMBER
};

// Immutable and shared by the ranks of a process. It stays loaded: NCCL keeps threads and state.
class Library {
 public:
  // The least version: communicators that do not block can be told to register memory.
  static constexpr int kLeastVersion = 21900;

  // `name` is a path or what the loader looks for. kPlugin with one sentence: what is wanted, what
  // was found, what to do.
  static Result<std::shared_ptr<const Library>> Open(const std::string& name) noexcept;

  const Functions& functions() const noexcept { return functions_; }
  int version() const noexcept { return version_; }  // 22809 is 2.28.9
  const std::string& name() const noexcept { return name_; }

  // "<what>: <NCCL's words>, <its last warning>". ncclInProgress is a success here.
  Status ToStatus(ncclResult_t result, const char* what, ncclComm_t comm) const noexcept;

 private:
  explicit Library(std::string name) : name_(std::move(name)) {}
  Status Load() noexcept;

  const std::string name_;
  Functions functions_;
  int version_ = 0;
};

}  // namespace engine::nccl
