// The transfers of one rank, from Submit to their end.
//
// All lie on one stream of the GPU, so they run and end in the order of submission. Submit queues a
// transfer there by itself if NCCL takes it within a moment. When NCCL needs longer (it connects
// ranks in a thread of its own), that transfer and those behind it are queued by the watchdog, a
// thread that also notices ends, deadlines and failures, and calls back.
//
//   pending:  head_ ... launching_ ... tail_
//             on the GPU |  in NCCL  | not yet there
//
// Order: what is before Transfer::stream at Submit is before the transfer (ready_event), and the
// transfer before what is asked of a stream after WaitStream (end_event). The host waits for none
// of it.
//
// Deadlines: a user may queue steps ahead of the GPU. So the clock of a transfer starts when the
// watchdog sees that it may run: its data are there, and those before it have ended, which is the
// progress that NCCL shows. If its data were there from the start, it starts at Submit at least.
//
// Recordings: what is submitted while its stream is recorded becomes part of that. It is launched
// before Submit returns, so that the recording may end, and has ended then for the host: its events
// stand for places in the recording, which nobody may query.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "comm.h"
#include "gpu.h"
#include "kit/failure.h"
#include "liveness_check.h"
#include "work.h"

namespace engine::nccl {

class Pipeline {
 public:
  // Borrows all; `token` is one int32 in memory of the GPU. Starts the watchdog, nccl_watchdog.
  Pipeline(int32_t gpu, Comm& comm, const GpuStream& stream, void* token, kit::Failure& failure,
           LivenessCheck liveness_check);
  // Fails what is pending, with the first reason or kAborted.
  ~Pipeline();

  Status Submit(const Transfer& transfer, Work** out) noexcept;  // [io-lane]
  // At least two that GroupedTransfers allows.
  Status SubmitGroup(Array<const Transfer> transfers, Work** out) noexcept;  // [io-lane]

  // Whether NCCL has not been told of all that was submitted. With the mutex of comm.
  bool has_waiting() const noexcept { return launching_ != nullptr; }

  // After a failure: has the watchdog end everything. [any-thread]
  void Ring() noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;

  Result<GpuWork*> Take(const Transfer& transfer) noexcept;
  Status Add(GpuWork* work, Work** out) noexcept;
  static Status MarkReady(GpuWork* work) noexcept;

  // With the mutex of comm_:
  Status Enqueue(GpuWork* work) noexcept;
  Status LaunchWaiting() noexcept;

  // On the watchdog:
  void Loop() noexcept;
  void Pass() noexcept;
  Status Advance(GpuWork** ended) noexcept;
  void NoteStart(GpuWork* head, bool ended) noexcept;
  kit::Clock::time_point DeadlineOf(const GpuWork* work, bool first) const noexcept;
  Status CheckHealth(kit::Clock::time_point now) noexcept;
  Status CheckDeadlines(kit::Clock::time_point now) noexcept;
  uint64_t reached() noexcept;
  void Found(const Status& error) noexcept;
  void EndAll() noexcept;
  void Rest(kit::Clock::time_point now) noexcept;
  void Sleep(std::chrono::milliseconds most) noexcept;

  const int32_t gpu_;
  Comm& comm_;
  const cudaStream_t stream_;
  const GpuStream& drain_;
  void* const token_;
  kit::Failure& failure_;
  kit::WorkPool pool_;

  // Guarded by the mutex of comm_:
  GpuWork* head_ = nullptr;
  GpuWork* tail_ = nullptr;
  GpuWork* launching_ = nullptr;  // the first that is not on the GPU
  bool begun_ = false;            // NCCL has been told of launching_
  kit::Clock::time_point next_deadline_ =
      kit::Clock::time_point::max();  // not after that of any pending one
  uint64_t submitted_ = 0;

  // Of the watchdog alone:
  LivenessCheck liveness_check_;
  kit::Clock::time_point awaited_since_;  // when something last ended, or there was something again
  kit::Clock::time_point next_health_;    // when NCCL is next asked for errors
  kit::Clock::time_point next_look_;      // when the other ranks are next asked
  bool ended_all_ = false;
  bool pending_ = false;  // what Advance saw, and the next deadline
  kit::Clock::time_point due_ = kit::Clock::time_point::max();
  bool may_run_ = false;                  // the first pending one, and
  kit::Clock::time_point may_run_since_;  // since when
  int64_t last_end_ns_ = 0;

  // The bell of the watchdog, which sleeps when nothing is pending.
  std::atomic<bool> sleeping_{false};
  std::mutex bell_mutex_;
  std::condition_variable bell_;
  bool rung_ = false;  // guarded by bell_mutex_
  std::atomic<bool> stop_{false};

  std::thread watchdog_;
};

}  // namespace engine::nccl
