// One communicator of NCCL, which does not block: a call that needs time goes on in a thread of
// NCCL, and until it has ended no other may be made.
//
// NCCL allows one thread at a time in a communicator, and abort only while none is there. So every
// function but mutex() and Drive() is called with mutex() held. Nothing waits while it is held.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/communicator.h"
#include "library.h"

namespace engine::nccl {

class Comm {
 public:
  // What memory is known to NCCL as; null members: it is not.
  struct Registration {
    void* handle = nullptr;
    ncclWindow_t window = nullptr;
  };

  // Takes `comm` over, which may still be connecting: busy.
  Comm(std::shared_ptr<const Library> library, ncclComm_t comm) noexcept
      : library_(std::move(library)), comm_(comm) {}
  ~Comm() { Abort(); }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  std::mutex& mutex() noexcept { return mutex_; }
  const Library& library() const noexcept { return *library_; }
  const std::shared_ptr<const Library>& shared_library() const noexcept { return library_; }

  // A call goes on in NCCL: see Poll.
  bool busy() const noexcept { return busy_; }
  bool aborted() const noexcept { return comm_ == nullptr; }

  // Queues `transfers` on `stream`, or begins to (busy); several of them as one group of NCCL,
  // which must have groups then. `token` is memory of the GPU, of one element, that is this
  // communicator's: barriers are sums of it.
  Status Start(Array<const Transfer> transfers, void* token, cudaStream_t stream) noexcept;

  // Asks for errors that came up by themselves, and whether what was under way (`what`) has ended.
  Status Poll(const char* what = "a transfer between GPUs failed") noexcept;

  // For calls that need time: calls step(), a Result<bool>() with the mutex held, whenever NCCL is
  // not busy, until it says true; in between, without the mutex, check(), a Status() that may give
  // up. kAborted: the communicator was aborted meanwhile.
  template <typename Step, typename Check>
  Status Drive(const char* what, const Step& step, const Check& check) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (aborted()) return Status::Error(StatusCode::kAborted, "the communicator has failed");
        if (busy_) ENGINE_RETURN_IF_ERROR(Poll(what));
        if (!busy_) {
          ENGINE_ASSIGN_OR_RETURN(const bool done, step());
          if (done) return {};
        }
      }
      ENGINE_RETURN_IF_ERROR(check());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  // Makes `memory` known, so that NCCL need not copy. `symmetric`: as a window, which all ranks
  // must do at the same time; busy after it. Not busy and not aborted before.
  Status Register(void* memory, size_t size_bytes, bool symmetric, Registration* out) noexcept;
  // Nothing happens after an abort, which forgets all.
  void Deregister(const Registration& registration) noexcept;

  // Begins to make a child of the ranks of equal `color`; busy after it, and with all ranks. When
  // it is not busy any more, TakeChild gives what NCCL has made: null for kNoColor. NCCL must have
  // CommSplit.
  Status Split(int color, int key, ncclConfig_t config) noexcept;
  ncclComm_t TakeChild() noexcept { return std::exchange(child_, nullptr); }

  // Ends what runs on the GPU, and a child that was not taken; the communicator is gone then.
  // Idempotent.
  void Abort() noexcept;

  // The end in peace: Finish begins it, and when it is not busy any more, Destroy.
  Status Finish() noexcept;
  void Destroy() noexcept;

 private:
  Status Track(ncclResult_t result, const char* what) noexcept;
  ncclResult_t Call(const Transfer& transfer, void* token, cudaStream_t stream) noexcept;

  const std::shared_ptr<const Library> library_;
  std::mutex mutex_;
  ncclComm_t comm_;  // these three guarded by mutex_
  bool busy_ = true;
  ncclComm_t child_ = nullptr;  // while a split keeps comm_ busy, a thread of NCCL's writes it
};

}  // namespace engine::nccl
