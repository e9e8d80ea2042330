#include "lane.h"

#include <pthread.h>
#include <signal.h>

#include <cstdio>

#include "describe.h"
#include "socket.h"

namespace engine::tcp {

Lane::Lane(int number, Channel& channel, Failure& failure)
    : channel_(channel), failure_(failure), collectives_(channel) {
  thread_ = std::thread([this] { Loop(); });
  char name[16];
  std::snprintf(name, sizeof(name), "tcp_io_%d", number);
  pthread_setname_np(thread_.native_handle(), name);
}

Lane::~Lane() {
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
  // A waiter that ran a transfer may not have left yet.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return inside_ == 0; });
}

void Lane::Enqueue(PooledWork* work) noexcept {
  const std::lock_guard lock(mutex_);
  (head_ ? tail_->next_ : head_) = work;
  tail_ = work;
  if (!running_) changed_.notify_one();
}

void Lane::RunIfNext(PooledWork* work) noexcept {
  std::unique_lock lock(mutex_);
  if (head_ != work || running_) return;
  RunHead(lock);
  if (stop_) changed_.notify_all();
}

void Lane::Loop() noexcept {
  sigset_t all;  // signals are for the threads of the host
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return (head_ && !running_) || (stop_ && !head_); });
    if (!head_) return;
    RunHead(lock);
  }
}

void Lane::RunHead(std::unique_lock<std::mutex>& lock) noexcept {
  PooledWork* const work = head_;
  running_ = true;
  ++inside_;
  lock.unlock();
  Status status;
  if (failure_.raised()) {
    status = failure_.reason();
  } else {
    const ScopedIgnoreSigpipe no_signal;
    status = collectives_.Run(work->transfer(), work->started_cell());
    if (!status.ok()) {
      status = failure_.RaiseFound(status.WithContext("%s", Describe(work->transfer()).c_str()));
    }
  }
  lock.lock();
  head_ = work->next_;
  running_ = false;
  if (head_) changed_.notify_one();  // this thread may be a waiter's, or be busy with a callback
  lock.unlock();
  work->Complete(std::move(status));
  work->Unreference();
  lock.lock();
  --inside_;
}

Status Lane::CheckDeadlines(Clock::time_point now, Clock::time_point* next) noexcept {
  const std::lock_guard lock(mutex_);
  for (const PooledWork* work = head_; work; work = work->next_) {
    *next = std::min(*next, work->deadline());
    if (now < work->deadline()) continue;
    const int peer = channel_.waiting_for();
    const Text text = Describe(work->transfer());
    const long long timeout = work->transfer().timeout_ms;
    if (peer < 0) {
      return Status::Error(StatusCode::kTimeout, "%s was not done within %lld ms", text.c_str(),
                           timeout);
    }
    return Status::Error(StatusCode::kTimeout,
                         "%s was not done within %lld ms: still waiting for rank %d", text.c_str(),
                         timeout, peer)
        .WithRank(peer);
  }
  return {};
}

}  // namespace engine::tcp
