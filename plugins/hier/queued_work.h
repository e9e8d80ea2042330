// The Work of a transfer in memory of a device, whose stages are all queued when Submit returns.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/communicator.h"
#include "engine/status.h"
#include "kit/deadline.h"
#include "kit/failure.h"
#include "kit/progress.h"
#include "kit/work.h"

namespace engine::hier {

class QueuedWork;

// How such works end, on a thread of its own, hier_ends: a callback of the user's may submit the next
// transfer, which may wait for the thread of a level, and finding the cause of a failure takes time.
//
// When a stage fails on one rank, the stages behind it run on there, and give other ranks something that
// is no sum. So a work is done when all ranks have said so, by a barrier, that their stages have ended
// well. What waits on a stream does not wait for that.
class Ends {
 public:
  // Borrows both.
  Ends(kit::Failure& failure, kit::Progress& progress);
  // Everything has ended below, and the failure is raised if works have not.
  ~Ends();

  // Before the first transfer: of all ranks; or null, where a transfer is a single stage.
  void ConfirmBy(Communicator* all) noexcept { all_ = all; }
  Result<QueuedWork*> Take(const Transfer& transfer) noexcept;
  // The thread ends: there are no new failures. Works that end later do so with this object.
  void Stop() noexcept;

 private:
  friend class QueuedWork;
  struct List {
    QueuedWork *head = nullptr, *tail = nullptr;
  };

  void Append(List& list, QueuedWork* work) noexcept;
  QueuedWork* TakeIf(List& list, size_t left) noexcept;
  void Wake(const Status& error) noexcept;
  void Look() noexcept;
  void Confirm(QueuedWork* work) noexcept;
  Status Failed() noexcept;

  kit::Failure& failure_;
  kit::Progress& progress_;
  Communicator* all_ = nullptr;
  kit::WorkPool pool_;
  std::mutex mutex_;
  Status error_;             // the first of a stage; these three guarded by mutex_
  List queued_, confirmed_;  // in the order of submission
  std::unique_ptr<kit::DeadlineWatcher> watcher_;  // may be null when mutex_ is taken
};

class QueuedWork final : public kit::PooledWork {
 public:
  explicit QueuedWork(Ends& ends) noexcept : ends_(ends) {}

  // ---- For the one thread that queues: Begin, Add for each stage, EndQueueing.

  Status Begin(size_t most_stages) noexcept;
  void Add(Work* stage) noexcept;  // takes it over
  // The last stage comes after all others. With an error: what was added may still move.
  void EndQueueing(const Status& status) noexcept;

  Status WaitStream(Stream* stream) noexcept override;

 private:
  friend class Ends;
  static constexpr uint32_t kStageFailed = kFirstOwnFlag;
  struct Stage {
    QueuedWork* whole;
    Work* work;
  };

  bool failed() const noexcept { return Has(kStageFailed); }
  void EndOne(const Status& status) noexcept;  // [any-thread]
  void Drop() noexcept override;

  Ends& ends_;                   // used while it is pending
  std::atomic<size_t> left_{0};  // stages, the queueing, and the confirmation
  std::vector<Stage> stages_;    // never more than reserved: callbacks know their places
  Work* end_ = nullptr;          // the last of those that were queued
};

}  // namespace engine::hier
