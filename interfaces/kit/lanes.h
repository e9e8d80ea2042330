// The core of a communicator whose transfers move on threads: a queue for each lane, transfers of a
// lane one after another in the order of submission, so that all ranks run the same one; transfers
// of different lanes overlap.
//
// A waiter that has no callback and waits for the timeout of the transfer at least runs the head of
// the queue itself, instead of two threads waking each other, if that is small: it stays until the
// transfer ends, and a large one may move for much longer than the wait. The lane's thread leaves it
// Lanes::kGrace for that, unless somebody wants the transfer who does not run it (PooledWork::Want).
// One more thread ends what is late, and tells and asks the other ranks (kit/progress.h). The store
// may keep it waiting: one that answers nobody ends the run itself, with Communicator::Abort.
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
#include "kit/progress.h"
#include "kit/thread.h"
#include "kit/work.h"

namespace engine::kit {

// How bytes move on one lane. A failure must end every Run within a second: see Failure::Stop.
class Transport {
 public:
  virtual ~Transport() = default;
  // Carries out work.transfer(); nothing else runs here meanwhile. Calls work.MarkStarted when the
  // first byte leaves, and Progress::Moved for every part of a second or less. An error fails the
  // communicator, with the transfer's name in front.
  virtual Status Run(PooledWork& work) noexcept = 0;

  // The rank that Run waits for now, or -1. [any-thread]
  virtual int32_t WaitingFor() const noexcept { return -1; }
};
using Transports = std::vector<std::unique_ptr<Transport>>;

// A transfer of host memory in a world of one.
inline void CopyOwn(const Transfer& transfer) noexcept {
  if (!transfer.recv || transfer.send == transfer.recv || SizeBytes(transfer) == 0) return;
  std::memcpy(transfer.recv, transfer.send, SizeBytes(transfer));
}

class Lanes {
 public:
  static constexpr std::chrono::microseconds kGrace{100};

  // A lane for each transport; without any, in a world of one, transfers are copies. The last two
  // are borrowed; the failure's Stop must not use this object. Threads are called <name>_io_<lane>
  // and <name>_watch. `spin`: how long a waiter looks for the end before it sleeps; 0 where cores
  // are scarce.
  Lanes(const char* name, Transports transports, std::chrono::microseconds spin, Failure& failure,
        Progress& progress);
  // Ends what is queued, which fails at once if `failure` is raised, and joins.
  ~Lanes();

  // For Communicator::Submit, after CheckTransfer. [io-lane]
  Status Submit(const Transfer& transfer, Work** out) noexcept;
  uint32_t count() const noexcept { return static_cast<uint32_t>(lanes_.size()); }

 private:
  class Lane;
  class LaneWork;

  // The transfer of a lane that is late first, and the one that runs.
  struct Oldest {
    Transfer transfer = {};
    Clock::time_point due = Clock::time_point::max();    // if nothing moves; max: there is none
    Clock::time_point begun = Clock::time_point::max();  // the one that runs
    Progress::Place place;
  };

  Clock::time_point Look(Clock::time_point now) noexcept;

  Failure& failure_;
  Progress& progress_;
  WorkPool pool_;
  uint64_t submitted_ = 0;  // [io-lane]
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Progress::Place> places_;       // of Look: one for each lane
  std::unique_ptr<DeadlineWatcher> watcher_;  // looks at lanes_
};

class Lanes::LaneWork final : public PooledWork {
 public:
  Lane* lane = nullptr;  // constant while it is pending

 private:
  void Carry() noexcept override;
  void Help(Clock::time_point give_up) noexcept override;
  void Want() noexcept override;
};

class Lanes::Lane {
 public:
  const std::chrono::microseconds spin;  // of a waiter

  Lane(const std::string& thread_name, std::unique_ptr<Transport> transport,
       std::chrono::microseconds spin_time, Failure& failure, Progress& progress)
      : spin(spin_time), transport_(std::move(transport)), failure_(failure), progress_(progress) {
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
    if (!running_ && !waits_) changed_.notify_one();
  }

  // The thread runs the queue at once.
  void Want() noexcept {
    const std::lock_guard lock(mutex_);
    if (head_ == nullptr) return;
    wanted_ = true;
    if (!running_) changed_.notify_one();
  }

  // Runs `work` on this thread if it is the next one and not under way.
  void RunIfNext(PooledWork* work) noexcept {
    std::unique_lock lock(mutex_);
    if (head_ != work || running_) return;
    RunHead(lock);
    if (stop_) changed_.notify_all();
  }

  Oldest oldest() noexcept {
    const std::lock_guard lock(mutex_);
    Oldest oldest{.place = {begun_, running_ ? transport_->WaitingFor() : -1}};
    if (running_) oldest.begun = begun_at_;
    for (const PooledWork* work = head_; work; work = work->next) {
      const Clock::time_point due = work->DeadlineAfter(progress_.last());
      if (due >= oldest.due) continue;
      oldest.due = due;
      oldest.transfer = work->transfer();
    }
    return oldest;
  }

 private:
  void Loop() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return (head_ && !running_) || (stop_ && !head_); });
      if (!head_) return;
      const uint64_t begun = begun_;
      waits_ = true;
      changed_.wait_for(lock, kGrace, [this] { return wanted_ || stop_; });
      waits_ = false;
      if (head_ && !running_ && (begun == begun_ || wanted_)) RunHead(lock);
    }
  }

  // Takes the lock and returns with it. The head leaves the queue before it is completed: a
  // completed work may be another transfer at once.
  void RunHead(std::unique_lock<std::mutex>& lock) noexcept {
    PooledWork* const work = head_;
    running_ = true;
    ++begun_;
    begun_at_ = CoarseNow();
    ++inside_;
    lock.unlock();
    Status status;
    if (failure_.raised()) {
      status = failure_.reason();
    } else {
      status = transport_->Run(*work);
      if (!status.ok())
        status = failure_.Fail(status.WithContext("%s", Describe(work->transfer()).c_str()));
    }
    progress_.Moved(0);
    lock.lock();
    head_ = work->next;
    running_ = false;
    wanted_ = wanted_ && head_;
    if (head_) changed_.notify_one();  // this thread may be a waiter's, or be busy with a callback
    lock.unlock();
    work->Complete(std::move(status));
    lock.lock();
    --inside_;
  }

  const std::unique_ptr<Transport> transport_;  // used by whoever set running_
  Failure& failure_;
  Progress& progress_;
  std::mutex mutex_;
  std::condition_variable changed_;
  PooledWork* head_ = nullptr;  // these nine guarded by mutex_
  PooledWork* tail_ = nullptr;
  bool running_ = false;  // the head is under way
  bool wanted_ = false;   // something in the queue is
  bool waits_ = false;    // the thread, for somebody else to run the head
  uint64_t begun_ = 0;    // so far, and when the last one
  Clock::time_point begun_at_;
  int inside_ = 0;  // threads in RunHead
  bool stop_ = false;
  std::thread thread_;  // last, so that it starts when the rest is there
};

// More than that takes so long that waking a thread makes no difference.
constexpr size_t kHelpBytes = 256 << 10;

// Between two looks at transfers with such a timeout.
inline std::chrono::milliseconds Tick(int64_t timeout_ms) noexcept {
  return std::chrono::milliseconds(std::clamp<int64_t>(timeout_ms / 4, 10, 1000));
}

inline void Lanes::LaneWork::Carry() noexcept {
  // A callback belongs on a thread of the communicator.
  const bool small = SizeBytes(transfer()) <= kHelpBytes;
  if (small && !has_callback()) lane->RunIfNext(this);
}

inline void Lanes::LaneWork::Help(Clock::time_point give_up) noexcept {
  if (give_up >= deadline()) Carry();
  if (!terminal()) Want();
  if (lane->spin.count() == 0) return;
  const Clock::time_point end = std::min(give_up, Clock::now() + lane->spin);
  while (!terminal() && Clock::now() < end) Pause();
}

inline void Lanes::LaneWork::Want() noexcept {
  lane->Want();
}

inline Lanes::Lanes(const char* name, Transports transports, std::chrono::microseconds spin,
                    Failure& failure, Progress& progress)
    : failure_(failure),
      progress_(progress),
      pool_(static_cast<int>(transports.size()), WorkPool::Of<LaneWork>()),
      places_(transports.size()) {
  for (std::unique_ptr<Transport>& transport : transports) {
    const std::string thread_name = std::string(name) + "_io_" + std::to_string(lanes_.size());
    lanes_.push_back(
        std::make_unique<Lane>(thread_name, std::move(transport), spin, failure, progress));
  }
  if (lanes_.empty()) return;
  watcher_ = std::make_unique<DeadlineWatcher>((std::string(name) + "_watch").c_str(),
                                               [this](Clock::time_point now) { return Look(now); });
}

inline Lanes::~Lanes() {
  watcher_.reset();
  lanes_.clear();
}

inline Status Lanes::Submit(const Transfer& transfer, Work** out) noexcept {
  if (failure_.raised()) return failure_.reason();
  ENGINE_ASSIGN_OR_RETURN(PooledWork* const work, pool_.Take(transfer));
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
  // Another thread may run and release it as soon as it is queued.
  const Clock::time_point next = work->submitted() + Tick(transfer.timeout_ms);
  lane.Enqueue(work);
  watcher_->Watch(next);
  return {};
}

// Once a tick while anything is pending. A lane that stands still for half its time looks at the
// other ranks; it fails a tick after the deadline, since ranks that have come later tell until then
// where they are.
inline Clock::time_point Lanes::Look(Clock::time_point now) noexcept {
  constexpr std::chrono::milliseconds kLeastSilence(500);
  Clock::time_point next = Clock::time_point::max();
  bool takes_long = false;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Oldest oldest = lanes_[i]->oldest();
    places_[i] = oldest.place;
    if (oldest.due == Clock::time_point::max()) continue;
    const int64_t timeout_ms = oldest.transfer.timeout_ms;
    const auto tick = Tick(timeout_ms);
    next = std::min({next, now + tick, oldest.due + tick});
    takes_long = takes_long || (oldest.begun < now && now - oldest.begun >= tick);
    if (now < oldest.due - Timeout(timeout_ms) / 2) continue;
    const auto [rank, why] = progress_.WhoIsBehind(
        i, oldest.place, std::max<Clock::duration>(Timeout(timeout_ms) / 4, kLeastSilence));
    // What was seen there may be progress.
    if (now < lanes_[i]->oldest().due + tick) continue;
    const std::string whom =
        rank < 0 ? "" : ": still waiting for rank " + std::to_string(rank) + why;
    (void)failure_.Fail(Status::Error(StatusCode::kTimeout, "%s did not move for %lld ms%s",
                                      Describe(oldest.transfer).c_str(),
                                      static_cast<long long>(timeout_ms), whom.c_str())
                            .WithRank(rank));  // each work gets it
    return Clock::time_point::max();
  }
  if (takes_long) progress_.Tell(places_);
  return next;
}

}  // namespace engine::kit
