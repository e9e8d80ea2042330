// The threads of a server that reduce and update.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace engine::zmq_ps {

class Offload {
 public:
  using Function = std::function<void()>;

  // `post` brings a function to the thread that calls Run. [any-thread]
  Offload(int threads, std::function<void(Function done)> post);
  ~Offload();  // runs what was handed over

  // Runs `work` on one of the threads and then `done` on the caller's; both at once, before it
  // returns, where `work` touches so few bytes that handing it over would take longer.
  void Run(size_t bytes, Function work, Function done);

 private:
  struct Task {
    Function work, done;
  };
  void Loop() noexcept;

  const std::function<void(Function)> post_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // these guarded by mutex_
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace engine::zmq_ps
