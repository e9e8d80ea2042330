// The core of a communicator whose transfers move on threads: a queue for each lane, transfers of a
// lane one after another in the order of submission, so that all ranks run the same one; transfers
// of different lanes overlap.
//
// A waiter that has no callback and waits as long as the transfer may take runs the head of the
// queue itself, instead of two threads waking each other. Deadlines are watched by a thread of
// their own.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/communicator.h"
#include "kit/deadline.h"
#include "kit/failure.h"
#include "kit/thread.h"
#include "kit/work.h"

namespace engine::kit {

// How bytes move. A failure must end every Run within a second: see Failure::Stop.
class Transport {
 public:
  // Carries out work.transfer() on `lane`, on which nothing else runs meanwhile, and calls
  // work.MarkStarted when the first byte leaves. An error fails the communicator, with the
  // transfer's name in front.
  virtual Status Run(int lane, PooledWork& work) noexcept = 0;

  // The rank that Run waits for now, or -1. [any-thread]
  virtual int32_t WaitingFor(int lane) const noexcept {
    (void)lane;
    return -1;
  }

 protected:
  ~Transport() = default;
};

// A transfer of host memory in a world of one.
inline void CopyOwn(const Transfer& transfer) noexcept {
  if (!transfer.recv || transfer.send == transfer.recv || SizeBytes(transfer) == 0) return;
  std::memcpy(transfer.recv, transfer.send, SizeBytes(transfer));
}

class Lanes {
 public:
  // `transport` and `failure` are borrowed; the failure's Stop must not use this object. Threads
  // are called <name>_io_<lane> and <name>_deadline. Without lanes, in a world of one, transfers
  // are copies. `spin`: how long a waiter looks for the end before it sleeps; 0 where cores are
  // scarce.
  Lanes(const char* name, int count, std::chrono::microseconds spin, Transport& transport,
        Failure& failure);
  // Ends what is queued, which fails at once if `failure` is raised, and joins.
  ~Lanes();

  // For Communicator::Submit, after CheckTransfer. [io-lane]
  Status Submit(const Transfer& transfer, Work** out) noexcept;
  uint32_t count() const noexcept { return static_cast<uint32_t>(lanes_.size()); }

 private:
  class Lane;
  class LaneWork;
  Clock::time_point EndOverdue(Clock::time_point now) noexcept;

  Failure& failure_;
  const std::shared_ptr<WorkPool> pool_;
  uint64_t submitted_ = 0;  // [io-lane]
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<DeadlineWatcher> watcher_;  // looks at lanes_
};

class Lanes::LaneWork final : public PooledWork {
 public:
  explicit LaneWork(std::chrono::microseconds spin) : spin_(spin) {}
  Lane* lane = nullptr;  // constant while it is pending

 private:
  void Help(Clock::time_point give_up) noexcept override;
  const std::chrono::microseconds spin_;
};

class Lanes::Lane {
 public:
  Lane(int number, const std::string& thread_name, Transport& transport, Failure& failure)
      : number_(number), transport_(transport), failure_(failure) {
    thread_ = StartThread(thread_name.c_str(), [this] { Loop(); });
  }
  ~Lane() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
    // A waiter that ran a transfer may not have left yet.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return inside_ == 0; });
  }

  void Enqueue(PooledWork* work) noexcept {
    const std::lock_guard lock(mutex_);
    (head_ ? tail_->next : head_) = work;
    tail_ = work;
    if (!running_) changed_.notify_one();
  }

  // Runs `work` on this thread if it is the next one and not under way.
  void RunIfNext(PooledWork* work) noexcept {
    std::unique_lock lock(mutex_);
    if (head_ != work || running_) return;
    RunHead(lock);
    if (stop_) changed_.notify_all();
  }

  // The error of a transfer that is past its deadline, if there is one; lowers *next to the
  // earliest deadline of the others.
  Status Overdue(Clock::time_point now, Clock::time_point* next) noexcept {
    const std::lock_guard lock(mutex_);
    for (const PooledWork* work = head_; work; work = work->next) {
      *next = std::min(*next, work->deadline());
      if (now < work->deadline()) continue;
      const int32_t peer = transport_.WaitingFor(number_);
      const std::string waiting =
          peer < 0 ? "" : ": still waiting for rank " + std::to_string(peer);
      return Status::Error(StatusCode::kTimeout, "%s was not done within %lld ms%s",
                           Describe(work->transfer()).c_str(),
                           static_cast<long long>(work->transfer().timeout_ms), waiting.c_str())
          .WithRank(peer);
    }
    return {};
  }

 private:
  void Loop() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return (head_ && !running_) || (stop_ && !head_); });
      if (!head_) return;
      RunHead(lock);
    }
  }

  // Takes the lock and returns with it. The head leaves the queue before it is completed: a
  // completed work may be another transfer at once.
  void RunHead(std::unique_lock<std::mutex>& lock) noexcept {
    PooledWork* const work = head_;
    running_ = true;
    ++inside_;
    lock.unlock();
    Status status;
    if (failure_.raised()) {
      status = failure_.reason();
    } else {
      status = transport_.Run(number_, *work);
      if (!status.ok())
        status = failure_.Fail(status.WithContext("%s", Describe(work->transfer()).c_str()));
    }
    lock.lock();
    head_ = work->next;
    running_ = false;
    if (head_) changed_.notify_one();  // this thread may be a waiter's, or be busy with a callback
    lock.unlock();
    work->Complete(std::move(status));
    lock.lock();
    --inside_;
  }

  const int number_;
  Transport& transport_;  // used by whoever set running_
  Failure& failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  PooledWork* head_ = nullptr;  // these five guarded by mutex_
  PooledWork* tail_ = nullptr;
  bool running_ = false;  // the head is under way
  int inside_ = 0;        // threads in RunHead
  bool stop_ = false;
  std::thread thread_;  // last, so that it starts when the rest is there
};

inline void Lanes::LaneWork::Help(Clock::time_point give_up) noexcept {
  // A callback belongs on a thread of the communicator.
  if (give_up >= deadline() && !has_callback()) lane->RunIfNext(this);
  if (spin_.count() == 0) return;
  const Clock::time_point end = std::min(give_up, Clock::now() + spin_);
  while (!terminal() && Clock::now() < end) Pause();
}

inline Lanes::Lanes(const char* name, int count, std::chrono::microseconds spin,
                    Transport& transport, Failure& failure)
    : failure_(failure), pool_(WorkPool::Create(count, [spin] {
        return Result<std::unique_ptr<PooledWork>>(std::make_unique<LaneWork>(spin));
      })) {
  for (int lane = 0; lane < count; ++lane) {
    const std::string thread_name = std::string(name) + "_io_" + std::to_string(lane);
    lanes_.push_back(std::make_unique<Lane>(lane, thread_name, transport, failure));
  }
  if (lanes_.empty()) return;
  const std::string thread_name = std::string(name) + "_deadline";
  watcher_ = std::make_unique<DeadlineWatcher>(
      thread_name.c_str(), [this](Clock::time_point now) { return EndOverdue(now); });
}

inline Lanes::~Lanes() {
  watcher_.reset();
  lanes_.clear();
}

inline Status Lanes::Submit(const Transfer& transfer, Work** out) noexcept {
  if (failure_.raised()) return failure_.reason();
  ENGINE_ASSIGN_OR_RETURN(PooledWork* const work, pool_->Take(transfer));
  *out = work;
  if (lanes_.empty()) {
    work->MarkStarted();
    CopyOwn(transfer);
    work->Complete({});
    return {};
  }
  // By position and not by Transfer::sequence: ranks that are out of step meet on one lane, see it
  // and say so.
  Lane& lane = *lanes_[submitted_++ % lanes_.size()];
  static_cast<LaneWork*>(work)->lane = &lane;
  const Clock::time_point deadline = work->deadline();
  lane.Enqueue(work);
  watcher_->Watch(deadline);
  return {};
}

inline Clock::time_point Lanes::EndOverdue(Clock::time_point now) noexcept {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& lane : lanes_) {
    const Status overdue = lane->Overdue(now, &next);
    if (overdue.ok()) continue;
    (void)failure_.Fail(overdue);  // each work gets it
    return Clock::time_point::max();
  }
  return next;
}

}  // namespace engine::kit
