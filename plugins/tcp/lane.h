// One thread, one set of connections, one queue: transfers of a lane run one after another, in the
// order of submission, so all ranks run the same one; transfers of different lanes overlap.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "collectives.h"
#include "failure.h"
#include "work.h"

namespace engine::tcp {

class Lane {
 public:
  // `channel` and `failure` are borrowed. The thread is named tcp_io_<number>.
  Lane(int number, Channel& channel, Failure& failure);
  // Finishes what is queued, which fails at once if `failure` is raised, and joins.
  ~Lane();

  // Takes over one reference to `work`. [io-lane]
  void Enqueue(PooledWork* work) noexcept;

  // Runs `work` on this thread if it is the next of the lane and not under way. [any-thread]
  void RunIfNext(PooledWork* work) noexcept;

  // The error of a transfer that is past its deadline, if there is one; lowers *next to the
  // earliest deadline of the others. [any-thread]
  Status CheckDeadlines(Clock::time_point now, Clock::time_point* next) noexcept;

 private:
  void Loop() noexcept;
  // Runs the head of the queue. Takes the lock and returns with it.
  void RunHead(std::unique_lock<std::mutex>& lock) noexcept;

  Channel& channel_;
  Failure& failure_;
  Collectives collectives_;  // used by whoever set running_

  std::mutex mutex_;
  std::condition_variable changed_;
  PooledWork* head_ = nullptr;  // these five guarded by mutex_
  PooledWork* tail_ = nullptr;
  bool running_ = false;  // the head is under way
  int inside_ = 0;        // threads in RunHead
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace engine::tcp
