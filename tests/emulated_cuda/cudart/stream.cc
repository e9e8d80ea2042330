#include "tests/emulated_cuda/cudart/stream.h"

#include <pthread.h>

#include <thread>
#include <utility>

namespace emulated_cuda {
namespace {

// Who asks again and again leaves the processor to what is asked about.
constexpr std::chrono::microseconds kMoment(500);
std::atomic<bool> g_stopped = false;
std::atomic<int> g_running = 0;

// Tasks that touch memory; false: none may start.
bool BeginTask() {
  g_running.fetch_add(1);
  if (!g_stopped.load()) return true;
  g_running.fetch_sub(1);
  return false;
}

}  // namespace

void StopAllQueues() {
  g_stopped.store(true);
  for (int i = 0; i < 1000 && g_running.load() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool QueuesAreStopped() {
  return g_stopped.load();
}

void Point::Reach() {
  std::lock_guard lock(mutex_);
  when_ = std::chrono::steady_clock::now();
  reached_ = true;
  changed_.notify_all();
}

void Point::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

bool Point::reached() const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kMoment, [&] { return reached_; });
}

std::chrono::steady_clock::time_point Point::when() const {
  std::lock_guard lock(mutex_);
  return when_;
}

void Queue::Push(Task task) {
  Add({.task = std::move(task)});
}

std::shared_ptr<Point> Queue::PushPoint() {
  auto point = std::make_shared<Point>();
  Add({.reach = point});
  return point;
}

void Queue::PushWait(std::shared_ptr<Point> point) {
  Add({.wait_for = std::move(point)});
}

void Queue::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Queue::idle() const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kMoment, [&] { return open_ == 0; });
}

void Queue::Add(Entry entry) {
  std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
  ++open_;
  changed_.notify_all();
  if (std::exchange(started_, true)) return;
  // The thread keeps the queue: a destroyed stream finishes its work.
  std::thread thread([self = shared_from_this()] { self->Work(); });
  pthread_setname_np(thread.native_handle(), "cuda_stream");
  thread.detach();
}

bool Queue::Take(Entry* out) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !entries_.empty() || closed_; });
  if (entries_.empty()) return false;
  *out = std::move(entries_.front());
  entries_.pop_front();
  return true;
}

void Queue::Work() {
  for (Entry entry; Take(&entry);) {
    if (entry.reach) {
      Done();  // who has waited for the point finds the queue empty
      entry.reach->Reach();
      continue;
    }
    if (entry.wait_for) entry.wait_for->Wait();
    if (entry.task) Run(entry.task);
    entry = {};
    Done();
  }
}

void Queue::Run(const Task& task) {
  if (device_->error.load() != 0 || !BeginTask()) return;
  const int error = task();
  int none = 0;
  if (error != 0) device_->error.compare_exchange_strong(none, error);
  g_running.fetch_sub(1);
}

void Queue::Done() {
  std::lock_guard lock(mutex_);
  if (--open_ == 0) changed_.notify_all();
}

}  // namespace emulated_cuda
