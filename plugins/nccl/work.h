// The Work of one transfer, or of a group of them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/communicator.h"
#include "kit/work.h"

namespace engine::nccl {

class Pipeline;

class GpuWork final : public kit::PooledWork {
 public:
  // For the pool: makes events on the current GPU.
  static Result<std::unique_ptr<kit::PooledWork>> Make();
  ~GpuWork() override;

  // transfer() is of a group the first one, with the stream and the earliest deadline of all.
  Array<const Transfer> transfers() const noexcept {
    return group_.empty() ? std::span(&transfer(), 1) : group_;
  }
  // Its data were there when it was submitted.
  bool ready() const noexcept { return !waits_ || recorded_; }
  int64_t submitted_ns() const noexcept { return submitted_ns_; }

  // The transfer is queued on the GPU, and end_event() is recorded behind it: this publishes it.
  void SetLaunched() noexcept { (void)Set(kLaunched); }
  bool launched() const noexcept { return Has(kLaunched); }

  cudaEvent_t ready_event() const noexcept { return ready_event_; }
  cudaEvent_t end_event() const noexcept { return end_event_; }

  Status WaitStream(Stream* stream) noexcept override;

 private:
  friend class Pipeline;
  static constexpr uint32_t kLaunched = kFirstOwnFlag;

  Status AwaitLaunch() noexcept;  // also returns why there is none
  kit::Text Words() const noexcept override { return kit::Describe(transfers()); }

  // Constant from the first use on. Neither keeps a time.
  cudaEvent_t ready_event_ = nullptr;  // recorded where `send` is made
  cudaEvent_t end_event_ = nullptr;    // recorded behind the transfer

  // Constant from the end of Submit to the end of the use.
  std::vector<Transfer> group_;  // empty: transfer() is all
  int64_t submitted_ns_ = 0;
  bool waits_ = false;     // for ready_event_
  bool recorded_ = false;  // part of a recording: streams may wait for it, the host need not
  uint64_t number_ = 0;    // position in the order of submission, from 0
};

}  // namespace engine::nccl
