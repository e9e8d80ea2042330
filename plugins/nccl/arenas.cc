#include "arenas.h"

#include <exception>
#include <string>
#include <utility>

#include "kit/deadline.h"

namespace engine::nccl {
namespace {

constexpr int64_t kZeroMs = 60000;
constexpr int64_t kRegisterMs = 30000;

}  // namespace

// mutex_ is the outer lock: GiveBack takes that of comm_.
void Arenas::Clear() noexcept {
  (void)UseGpu(gpu_);
  const std::lock_guard lock(mutex_);
  for (const auto& [data, arena] : arenas_) GiveBack(data, arena);
  arenas_.clear();
}

Status Arenas::Allocate(uint64_t size_bytes, void** out) noexcept {
  if (size_bytes == 0) {
    return Status::Error(StatusCode::kInvalidArgument, "0 bytes of memory for transfers");
  }
  ENGINE_RETURN_IF_ERROR(UseGpu(gpu_));
  Arena obtained;
  void* data = nullptr;
  ENGINE_RETURN_IF_ERROR(Obtain(size_bytes, &data, &obtained));
  Status status = Zero(data, size_bytes);
  Arena* arena = nullptr;
  if (status.ok()) status = Keep(data, obtained, &arena);
  if (arena == nullptr) {
    GiveBack(data, obtained);
    return status;
  }
  // After an error NCCL may still write to the registration: memory stays until Clear.
  ENGINE_RETURN_IF_ERROR(Register(data, size_bytes, arena));
  *out = data;
  return {};
}

// Nodes of a map do not move, so NCCL may write to *kept after the lock is released.
Status Arenas::Keep(void* data, const Arena& arena, Arena** kept) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    *kept = &arenas_.emplace(data, arena).first->second;
    return {};
  } catch (const std::exception&) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for an arena");
  }
}

// NCCL's own memory first, as it registers no other.
Status Arenas::Obtain(uint64_t size_bytes, void** out, Arena* arena) noexcept {
  const Library& library = comm_.library();
  const Functions& call = library.functions();
  std::string why = "it has no ncclMemAlloc";
  if (call.MemAlloc != nullptr && call.MemFree != nullptr) {
    const ncclResult_t result = call.MemAlloc(out, size_bytes);
    arena->of_nccl = result == ncclSuccess;
    if (arena->of_nccl) return {};
    (void)cudaGetLastError();
    why = library.ToStatus(result, "ncclMemAlloc", nullptr).message();
  }
  const cudaError_t error = cudaMalloc(out, size_bytes);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    const std::string what =
        std::string("allocating ").append(std::to_string(size_bytes)).append(" bytes of the GPU");
    return ToStatus(error, what.c_str());
  }
  host_.Log(LogLevel::kWarning, std::string("NCCL gives no memory of its own (")
                                    .append(why)
                                    .append("): transfers may be copied on their way"));
  return {};
}

// On a stream of its own: others may be waiting for peers.
Status Arenas::Zero(void* data, uint64_t size_bytes) noexcept {
  ENGINE_ASSIGN_OR_RETURN(const GpuStream stream, GpuStream::Create());
  ENGINE_RETURN_IF_ERROR(
      ToStatus(cudaMemsetAsync(data, 0, size_bytes, stream.get()), "zeroing memory"));
  return stream.Drain(kZeroMs);
}

Status Arenas::Register(void* data, uint64_t size_bytes, Arena* arena) noexcept {
  const Functions& call = comm_.library().functions();
  if (!arena->of_nccl) return {};  // NCCL refuses memory of others
  if ((symmetric_ ? call.CommWindowRegister == nullptr : call.CommRegister == nullptr)) return {};
  const kit::Clock::time_point deadline = kit::DeadlineIn(kRegisterMs);
  bool begun = false;
  const auto step = [&]() -> Result<bool> {
    if (!std::exchange(begun, true)) {
      ENGINE_RETURN_IF_ERROR(comm_.Register(data, size_bytes, symmetric_, &arena->registration));
    }
    return !comm_.busy();
  };
  return comm_.Drive("registering memory", step, [&]() -> Status {
    if (kit::Clock::now() < deadline) return {};
    return Status::Error(StatusCode::kTimeout, "NCCL did not register %llu bytes within %lld ms",
                         static_cast<unsigned long long>(size_bytes),
                         static_cast<long long>(kRegisterMs));
  });
}

// Out of the map first: of two calls for one address one finds nothing.
void Arenas::Free(void* data) noexcept {
  if (data == nullptr) return;
  Arena arena;
  {
    const std::lock_guard lock(mutex_);
    const auto found = arenas_.find(data);
    if (found == arenas_.end()) return;
    arena = found->second;
    arenas_.erase(found);
  }
  (void)UseGpu(gpu_);
  GiveBack(data, arena);
}

// What was aborted may still be at work, in a thread of NCCL's: the process keeps its memory.
void Arenas::GiveBack(void* data, const Arena& arena) noexcept {
  {
    const std::lock_guard lock(comm_.mutex());
    if (comm_.aborted()) return;
    comm_.Deregister(arena.registration);
  }
  if (arena.of_nccl) {
    (void)comm_.library().functions().MemFree(data);
  } else {
    (void)cudaFree(data);
  }
}

}  // namespace engine::nccl
