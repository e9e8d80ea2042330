// A task is handed to a thread with its memory and comes back with it: `work` touches what nobody else
// does meanwhile, and `done` runs where all else does. The mutex orders the two.
#include "offload.h"

#include <utility>

#include "kit/thread.h"

namespace engine::zmq_ps {
namespace {

constexpr size_t kInlineBytes = 32 << 10;

}  // namespace

Offload::Offload(int threads, std::function<void(Function done)> post) : post_(std::move(post)) {
  for (int i = 0; i < threads; ++i) {
    threads_.push_back(kit::StartThread("zmq_ps_reduce", [this] { Loop(); }));
  }
}

Offload::~Offload() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Offload::Run(size_t bytes, Function work, Function done) {
  if (bytes <= kInlineBytes) {
    work();
    return done();
  }
  const std::lock_guard lock(mutex_);
  tasks_.push_back({std::move(work), std::move(done)});
  changed_.notify_one();
}

// Tasks are independent of each other: whose order matters hands over one at a time.
void Offload::Loop() noexcept {
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

}  // namespace engine::zmq_ps
