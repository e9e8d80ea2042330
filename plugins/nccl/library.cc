#include "library.h"

#include <dlfcn.h>

#include <exception>
#include <utility>

namespace engine::nccl {
namespace {

StatusCode CodeOf(ncclResult_t result) noexcept {
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return StatusCode::kInvalidArgument;
    case ncclRemoteError:
      return StatusCode::kPeerLost;
    default:
      return StatusCode::kDevice;
  }
}

}  // namespace

Result<std::shared_ptr<const Library>> Library::Open(const std::string& name) noexcept {
  try {
    std::shared_ptr<Library> library(new Library(name));
    ENGINE_RETURN_IF_ERROR(library->Load());
    return std::shared_ptr<const Library>(std::move(library));
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot open NCCL: %s", error.what());
  }
}

// Never closed: what it has registered with the CUDA runtime would be left behind.
Status Library::Load() noexcept {
  const kit::Text least = VersionText(kLeastVersion);
  void* const handle = dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return Status::Error(StatusCode::kPlugin,
                         "nccl needs NCCL %s or later as '%s' and cannot open it (%s): install "
                         "it, put its folder on LD_LIBRARY_PATH, or set the option library of nccl",
                         least.c_str(), name_.c_str(), why != nullptr ? why : "no reason given");
  }
#define ENGINE_NCCL_FIND(symbol)                                                  \
  functions_.symbol = reinterpret_cast<decltype(functions_.symbol)>(dlsym(handle, \
                                                                          "ncc"   \
                                                                          "l" #symbol));
  ENGINE_NCCL_REQUIRED(ENGINE_NCCL_FIND)
  ENGINE_NCCL_OPTIONAL(ENGINE_NCCL_FIND)
#undef ENGINE_NCCL_FIND
  if (functions_.GetVersion != nullptr && functions_.GetVersion(&version_) != ncclSuccess) {
    version_ = 0;
  }
  if (version_ < kLeastVersion) {
    const kit::Text found = VersionText(version_);
    return Status::Error(StatusCode::kPlugin,
                         "nccl needs NCCL %s or later, and '%s' is %s: install a newer one, or "
                         "set the option library of nccl",
                         least.c_str(), name_.c_str(), version_ > 0 ? found.c_str() : "not NCCL");
  }
#define ENGINE_NCCL_DEMAND(symbol)                                                        \
  if (functions_.symbol == nullptr) {                                                     \
    return Status::Error(StatusCode::kPlugin,                                             \
                         "'%s' says that it is NCCL %s but has no nccl" #symbol           \
                         ": install NCCL %s or later, or set the option library of nccl", \
                         name_.c_str(), VersionText(version_).c_str(), least.c_str());    \
  }
  ENGINE_NCCL_REQUIRED(ENGINE_NCCL_DEMAND)
#undef ENGINE_NCCL_DEMAND
  return {};
}

Status Library::ToStatus(ncclResult_t result, const char* what, ncclComm_t comm) const noexcept {
  if (result == ncclSuccess || result == ncclInProgress) return {};
  const char* const detail = functions_.GetLastError(comm);
  const bool has_detail = detail != nullptr && detail[0] != '\0';
  return Status::Error(CodeOf(result), "%s: NCCL says '%s'%s%s", what,
                       functions_.GetErrorString(result), has_detail ? "; its last warning: " : "",
                       has_detail ? detail : "");
}

kit::Text VersionText(int nccl_version) noexcept {
  // Up to 2.8 a version was 1000 * major + 100 * minor + patch.
  const int scale = nccl_version >= 10000 ? 10000 : 1000;
  return kit::Format("%d.%d.%d", nccl_version / scale, nccl_version % scale / 100,
                     nccl_version % 100);
}

}  // namespace engine::nccl
