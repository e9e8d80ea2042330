#include "worker.h"

#include <utility>

#include "futex.h"
#include "kit/thread.h"

namespace engine::shm {

void Ring(Control& control) noexcept {
  // The worker says that it sleeps and looks at the bell; the ringer rings and looks whether it
  // sleeps. All four in one order, so one of the two sees the other.
  control.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (control.worker_sleeps.load(std::memory_order_seq_cst) != 0) FutexWake(control.doorbell);
}

Worker::Worker(Control& control, std::function<void()> run)
    : control_(control), run_(std::move(run)) {
  thread_ = kit::StartThread("shm_io", [this] { Loop(); });
}

Worker::~Worker() {
  stop_.store(true, std::memory_order_relaxed);  // the bell publishes it
  Ring();
  thread_.join();
}

void Worker::Ring() noexcept {
  shm::Ring(control_);
}

void Worker::Loop() noexcept {
  constexpr int64_t kLongNs = 3600LL * 1000000000;
  while (true) {
    const uint32_t rung = control_.doorbell.load(std::memory_order_seq_cst);
    run_();
    if (stop_.load(std::memory_order_relaxed)) return;
    control_.worker_sleeps.store(1, std::memory_order_seq_cst);
    if (control_.doorbell.load(std::memory_order_seq_cst) == rung) {
      FutexWait(control_.doorbell, rung, kLongNs);
    }
    control_.worker_sleeps.store(0, std::memory_order_relaxed);
  }
}

}  // namespace engine::shm
