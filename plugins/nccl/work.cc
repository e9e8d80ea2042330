#include "work.h"

#include <utility>

#include "gpu.h"

namespace engine::nccl {

// Events are made once per work of the pool, and used again: a step makes none.
Result<std::unique_ptr<kit::PooledWork>> GpuWork::Make() {
  auto work = std::make_unique<GpuWork>();
  for (cudaEvent_t* event : {&work->ready_event_, &work->end_event_}) {
    ENGINE_RETURN_IF_ERROR(
        ToStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event"));
  }
  return std::unique_ptr<kit::PooledWork>(std::move(work));
}

GpuWork::~GpuWork() {
  if (ready_event_ != nullptr) (void)cudaEventDestroy(ready_event_);
  if (end_event_ != nullptr) (void)cudaEventDestroy(end_event_);
}

// While NCCL connects the ranks there is nothing on the GPU to wait for.
Status GpuWork::AwaitLaunch() noexcept {
  const int64_t limit_ms = transfer().timeout_ms + kit::kWorkGraceMs;
  if (!Await(kLaunched | kTerminal, kit::DeadlineIn(limit_ms))) return StillPending(limit_ms);
  return launched() ? Status() : WaitHost(0);
}

Status GpuWork::WaitStream(Stream* stream) noexcept {
  auto* const native = stream == nullptr ? nullptr : static_cast<cudaStream_t>(stream->native());
  // Work of the CPU is done when asked for. The deadline may have begun later than Submit.
  if (native == nullptr) return WaitHost(transfer().timeout_ms + kit::kWorkGraceMs);
  ENGINE_RETURN_IF_ERROR(AwaitLaunch());
  if (terminal() && !recorded_) return WaitHost(0);
  return ToStatus(cudaStreamWaitEvent(native, end_event_, 0), "waiting for a transfer");
}

}  // namespace engine::nccl
