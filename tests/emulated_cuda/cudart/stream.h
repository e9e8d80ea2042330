// Queues of work with a thread each, points in them, and recordings of what would be queued.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace emulated_cuda {

using Task = std::function<cudaError_t()>;

// A place in a queue: reached once. [any-thread]
class Point {
 public:
  void Reach();
  void Wait();
  bool reached() const;                                // now or in a moment
  std::chrono::steady_clock::time_point when() const;  // reached() is true

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;  // guarded by mutex_, as the next
  std::chrono::steady_clock::time_point when_;
};

// What one device and all of its streams share.
struct DeviceState {
  std::atomic<int> error = 0;  // the sticky one
};

// Work in order. The thread starts with the first task, and ends when the stream was closed and
// all work is done. [any-thread]
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  explicit Queue(DeviceState* device) : device_(device) {}

  // Not run after the device has failed.
  void Push(Task task);
  std::shared_ptr<Point> PushPoint();
  void PushWait(std::shared_ptr<Point> point);
  void Close();
  bool idle() const;  // now or in a moment

 private:
  // One of the three.
  struct Entry {
    Task task;
    std::shared_ptr<Point> reach;
    std::shared_ptr<Point> wait_for;
  };

  void Add(Entry entry);
  void Work();
  bool Take(Entry* out);
  void Run(const Task& task);
  void Done();

  DeviceState* const device_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Entry> entries_;  // guarded by mutex_, as the rest
  size_t open_ = 0;            // entries that were added and are not done
  bool started_ = false;
  bool closed_ = false;
};

// From now on no task starts, and those that run have ended or a second has gone by: before the
// process takes its memory down.
void StopAllQueues();
bool QueuesAreStopped();

}  // namespace emulated_cuda
