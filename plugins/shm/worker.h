// The thread that runs transfers nobody waits for. It sleeps on the doorbell in the rank's segment,
// which the rank's own threads ring, and peers that wait for a transfer no thread attends to.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "control.h"

namespace engine::shm {

class Worker {
 public:
  // `control` is borrowed. `run` is called on the thread, named shm_io, whenever the bell rang.
  Worker(Control& control, std::function<void()> run);
  ~Worker();  // joins

  void Ring() noexcept;  // [any-thread]

 private:
  void Loop() noexcept;

  Control& control_;
  const std::function<void()> run_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Rings the bell of any rank. [any-thread]
void Ring(Control& control) noexcept;

}  // namespace engine::shm
