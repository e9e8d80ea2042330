// Follows an accelerator: says when the device has done what a compute task has queued.
//
// The host queues a whole backward pass in the time that the device needs for its first layers. A
// gradient may be sent when the device has made it, and which one is sent first must be chosen
// among those: so tasks that a transfer waits for end when the device reaches them, and all others
// when they are queued.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/device.h"

namespace engine {

class DeviceLane {
 public:
  // Called on the lane's thread for each mark, in the order of Mark: the task, and the error of the
  // device if there was one.
  using OnReached = std::function<void(uint32_t task, Status status)>;

  // At most `capacity` marks are under way at once. A mark that the device does not reach within
  // `timeout_ms` is an error.
  static Result<std::unique_ptr<DeviceLane>> Create(Device& device, size_t capacity,
                                                    int64_t timeout_ms, OnReached on_reached);
  // Returns when no call of OnReached is under way; marks that are not reached yet are forgotten.
  ~DeviceLane();

  // `task` ends at the point that `stream` has now. [compute-lane]
  Status Mark(uint32_t task, Stream* stream);

  // Marks whose call has not returned.
  size_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::unique_ptr<Event> event;
    uint32_t task = 0;
  };

  DeviceLane(int64_t timeout_ms, OnReached on_reached);
  void Follow();

  const int64_t timeout_ms_;
  const OnReached on_reached_;
  std::vector<Slot> slots_;  // a ring; a slot is the lane's while it is queued
  std::atomic<size_t> in_flight_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t head_ = 0, size_ = 0;  // guarded by mutex_, as stop_
  bool stop_ = false;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace engine
