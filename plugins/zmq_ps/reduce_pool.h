// Threads that add up what workers pushed, and update what a server keeps.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>
#include <zmq.hpp>

#include "reduce.h"
#include "served_task.h"

namespace engine::zmq_ps {

// Inputs to fold into an accumulator, in their order. Owns its memory while it is under way.
struct ReduceTask {
  const ReduceKernels* kernels = nullptr;
  size_t count = 0;
  ::zmq::message_t accumulator;  // empty: the first input becomes it
  std::vector<::zmq::message_t> inputs;
  bool last = false;  // store the result: afterwards `accumulator` holds elements
  void* context = nullptr;

  size_t bytes() const noexcept { return inputs.size() * count * kernels->accumulator_bytes; }
};

// Block by block, so that an accumulator passes through memory once for all inputs.
void Run(ReduceTask& task);

using PoolTask = std::variant<ReduceTask, UpdateTask*>;

class ReducePool {
 public:
  // `done` is called on a thread of the pool.
  ReducePool(int threads, std::function<void(PoolTask)> done);
  ~ReducePool();  // finishes what was submitted

  // The thread with the least to do.
  int Choose() const noexcept;
  void Submit(int thread, PoolTask task);

 private:
  struct Lane {
    mutable std::mutex mutex;
    std::condition_variable changed;
    std::deque<PoolTask> tasks;  // these three guarded by mutex
    size_t bytes = 0;
    bool stop = false;
    std::thread thread;
  };
  void Loop(Lane& lane) noexcept;

  const std::function<void(PoolTask)> done_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace engine::zmq_ps
