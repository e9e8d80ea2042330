// The threads of a server that reduce and update.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kit/thread.h"

namespace engine::zmq_ps {

// A task is handed to a thread with its memory and comes back with it: `work` touches what nobody
// else does meanwhile, and `done` runs where all else does. The mutex orders the two. Tasks are
// independent of each other: whose order matters hands over one at a time.
class Offload {
 public:
  using Function = std::function<void()>;

  // `post` brings a function to the thread that calls Run. [any-thread]
  Offload(int threads, std::function<void(Function done)> post) : post_(std::move(post)) {
    for (int i = 0; i < threads; ++i) {
      threads_.push_back(kit::StartThread("zmq_ps_reduce", [this] { Loop(); }));
    }
  }
  ~Offload() {  // runs what was handed over
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  // Runs `work` on one of the threads and then `done` on the caller's; both at once, before it
  // returns, where `work` touches so few bytes that handing it over would take longer.
  void Run(size_t bytes, Function work, Function done) {
    if (bytes <= kInlineBytes) {
      work();
      return done();
    }
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(work), std::move(done)});
    changed_.notify_one();
  }

 private:
  static constexpr size_t kInlineBytes = 32 << 10;
  struct Task {
    Function work, done;
  };

  void Loop() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task.work();
      post_(std::move(task.done));
      lock.lock();
    }
  }

  const std::function<void(Function)> post_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // these guarded by mutex_
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace engine::zmq_ps
