// Progress: whoever holds progress_ may use channels and works. The thread gives way as soon as
// there is a caller, and waits a moment before it takes over again, because who waits for one
// transfer after the other comes back at once. Works are completed without that lock, so that their
// callbacks may submit the next ones.
//
// Memory: a work counts in memory_uses the messages that libzmq has of the caller's memory, the
// requests that are queued, and one for all answers. Who takes it to zero puts the work into
// unused_, and only from there it becomes terminal: nobody touches the caller's buffers then.
#include "worker.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "kit/thread.h"
#include "request_data.h"
#include "wire.h"

namespace engine::zmq_ps {

constexpr int kIdleMs = 500;
constexpr int kBusyMs = 20;
constexpr int kAckMs = 2;  // with acknowledgements that are not due yet
constexpr auto kCallerReturns = std::chrono::microseconds(1000);
// For which a server that was asked who is missing may be silent, and then asked again.
constexpr auto kProbeTime = std::chrono::milliseconds(1000);
// For which the news that a rank is lost waits for its root cause.
constexpr auto kRootCauseGrace = std::chrono::milliseconds(200);

Worker::Worker(WorkerSettings settings)
    : settings_(std::move(settings)),
      rule_{.servers = static_cast<uint32_t>(settings_.servers.size()),
            .world_size = settings_.world_size,
            .slice_bytes = settings_.connection.flow.slice_bytes,
            .min_slice_bytes = settings_.min_slice_bytes},
      context_(settings_.connection.io_threads) {
  thread_poll_.Add(wake_up_->descriptor());
  for (const ServerAddress& address : settings_.servers) {
    channels_.push_back(std::make_unique<Channel>(address, settings_, context_, wake_up_, *this));
    thread_poll_.AddSocket(channels_.back()->socket());
    thread_poll_.AddSocket(channels_.back()->monitor());
  }
  caller_poll_ = thread_poll_;
  thread_ = kit::StartThread("zmq_ps_worker", [this] { Loop(); });
  if (settings_.gate) settings_.gate->Open(this);
}

Result<std::unique_ptr<Worker>> Worker::Connect(WorkerSettings settings,
                                                Clock::time_point deadline) noexcept {
  for (const ServerAddress& server : settings.servers) {
    if (!server.public_key.empty() || IsLoopback(server.endpoint)) continue;
    return Status::Error(StatusCode::kConfig,
                         "the parameter server at %s would be talked to in plain text over the "
                         "network: it must have keys",
                         server.endpoint.c_str());
  }
  try {
    std::unique_ptr<Worker> worker(new Worker(std::move(settings)));
    std::unique_lock lock(worker->mutex_);
    const auto is_settled = [&] { return worker->welcomed_ || !worker->reason_.ok(); };
    if (worker->changed_.wait_until(lock, deadline, is_settled)) {
      if (!worker->reason_.ok()) return Status(worker->reason_);
      return worker;
    }
    lock.unlock();
    worker->Abort(Status::Error(StatusCode::kRendezvous, "not connected in time"),
                  Status::Error(StatusCode::kPeerLost, "not connected in time"));
    worker->thread_.join();
    return worker->MissingServer();
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot connect to parameter servers: %s",
                         error.what());
  }
}

Status Worker::MissingServer() const {
  for (const auto& channel : channels_) {
    if (channel->welcomed()) continue;
    return Status::Error(StatusCode::kRendezvous,
                         "%s did not answer in time: check that this host can reach it",
                         Describe(channel->address()).c_str())
        .WithRank(channel->address().member);
  }
  return reason_;
}

Worker::~Worker() {
  const auto rank = static_cast<int32_t>(settings_.worker);
  {
    const std::lock_guard lock(mutex_);
    orderly_ = reason_.ok();
  }
  Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"),
        Status::Error(StatusCode::kPeerLost, "rank %d has left", rank).WithRank(rank));
  if (thread_.joinable()) thread_.join();
  if (settings_.gate) settings_.gate->Close();
}

Status Worker::Submit(TransferWork* work) noexcept {
  const std::lock_guard lock(mutex_);
  if (!reason_.ok()) return reason_;
  work->next = nullptr;
  *inbox_end_ = work;
  inbox_end_ = &work->next;
  wake_up_->Signal();
  return {};
}

// One caller at a time; others sleep until their work is terminal, which this one or the thread
// sees to. The thread waits at most kIdleMs even if no signal comes from the caller that leaves.
void Worker::MakeProgress(const TransferWork& work, Clock::time_point deadline) noexcept {
  if (caller_.exchange(true)) return;
  while (!work.terminal() && !failed() && Clock::now() < deadline) {
    const int wait_ms = RunStep(true);
    if (wait_ms == 0 || work.terminal()) continue;
    caller_poll_.Wait(static_cast<int>(
        std::min<int64_t>(wait_ms, std::max<int64_t>(kit::MillisecondsUntil(deadline), 1))));
  }
  const std::lock_guard lock(mutex_);
  caller_.store(false);
  if (thread_waits_) changed_.notify_all();
}

void ProgressGate::MakeProgress(const TransferWork& work,
                                kit::Clock::time_point deadline) noexcept {
  const std::shared_lock lock(mutex_);
  if (worker_) worker_->MakeProgress(work, deadline);
}

void Worker::Abort(const Status& reason, const Status& farewell) noexcept {
  const std::lock_guard lock(mutex_);
  if (!reason_.ok()) return;
  reason_ = reason;
  farewell_ = farewell;
  failed_.store(true, std::memory_order_release);
  wake_up_->Signal();
  changed_.notify_all();
}

Status Worker::reason() const noexcept {
  const std::lock_guard lock(mutex_);
  return reason_;
}

// Others get the root cause itself, so that they do not blame this rank.
void Worker::Fail(const Status& reason) {
  Abort(reason, reason.WithContext("rank %u failed", settings_.worker));
}

// Of a lost rank its engine knows a better reason than servers, which see its connection end, and
// tells every rank. That one is late may be the fault of another server, which all are asked for
// then.
void Worker::Refused(const Status& reason) {
  const bool is_late = reason.code() == StatusCode::kTimeout;
  if (!is_late && reason.code() != StatusCode::kPeerLost) return Fail(reason);
  if (!refusal_.ok()) return;
  refusal_ = reason;
  const Clock::time_point now = Clock::now();
  if (probing_) return;
  decide_at_ = now + kRootCauseGrace;
  if (is_late) Probe(nullptr, now);
}

// One that takes the place of a lost rank counts on where the others are.
void Worker::Welcomed(uint64_t last_round) {
  if (settings_.incarnation > 0) rounds_[0] = std::max(rounds_[0], last_round);
  const bool all = std::all_of(channels_.begin(), channels_.end(),
                               [](const auto& channel) { return channel->welcomed(); });
  const std::lock_guard lock(mutex_);
  welcomed_ = all;
  changed_.notify_all();
}

void Worker::Loop() noexcept {
  while (!failed()) {
    if (caller_) {
      WaitForCaller();
      continue;
    }
    const int wait_ms = RunStep(false);
    if (wait_ms > 0) thread_poll_.Wait(wait_ms);
  }
  FailAll();
}

// For a moment the thread only sleeps, and a caller that leaves need not wake it.
void Worker::WaitForCaller() {
  std::unique_lock lock(mutex_);
  const auto left = [&] { return !caller_ || !reason_.ok(); };
  if (left()) return;
  changed_.wait_for(lock, kCallerReturns, [&] { return !reason_.ok(); });
  thread_waits_ = true;
  changed_.wait_for(lock, std::chrono::milliseconds(kIdleMs), left);
  thread_waits_ = false;
}

// Anything thrown is from libzmq or for lack of memory: the worker fails with it, like with any
// other reason, and FailAll ends what is under way.
int Worker::RunStep(bool is_caller) {
  int wait_ms = 0;
  kit::PooledWork* finished = nullptr;
  {
    const std::lock_guard progress(progress_);
    // What the thread does after a caller has begun might end the caller's work while it waits.
    if (failed() || (caller_ && !is_caller)) return 0;
    try {
      wait_ms = Step();
      finished = TakeUnused();
    } catch (const std::exception& error) {
      Fail(Status::Error(StatusCode::kInternal, "the worker of the parameter servers failed: %s",
                         error.what())
               .WithRank(static_cast<int32_t>(settings_.worker)));
    }
  }
  Complete(finished);
  return wait_ms;
}

// A signal that comes after Clear wakes the next wait.
int Worker::Step() {
  wake_up_->Clear();
  TakeInbox();
  bool is_ready = false, has_acks = false;
  const Clock::time_point now = Clock::now();
  const bool check = now >= next_check_;
  for (const auto& channel : channels_) {
    channel->HandleEvents();
    channel->Receive();
    channel->Send(/*all_acknowledgements=*/false);
    is_ready = channel->IsReady() || is_ready;
    has_acks = has_acks || channel->has_acknowledgements();
  }
  if (check) {
    next_check_ = now + std::chrono::milliseconds(kBusyMs);
    CheckTime(now);
  }
  const int idle_ms = active_.empty() && welcomed_ ? kIdleMs : kBusyMs;
  return is_ready ? 0 : has_acks ? kAckMs : idle_ms;
}

void Worker::TakeInbox() {
  kit::PooledWork* work = nullptr;
  {
    const std::lock_guard lock(mutex_);
    work = std::exchange(inbox_, nullptr);
    inbox_end_ = &inbox_;
  }
  while (work) {
    kit::PooledWork* const next = work->next;
    Begin(static_cast<TransferWork*>(work));
    work = next;
  }
}

// Cut by key and size alone, so that every rank cuts alike and a slice of a bucket stays at its
// server. The key also says what is matched with what, whatever the order on each rank: the first
// transfer of a key with the first ones of other ranks.
void Worker::Begin(TransferWork* work) {
  active_.insert(work);
  work->number = ++begun_;
  const bool served = IsServed(work->operation);
  Header header = SenderOf(settings_);
  header.key = work->transfer().key;
  header.round = served ? 1 : ++rounds_[header.key];
  if (work->operation == Operation::kLastStep) {
    CutForAll(rule_, &slices_);
  } else {
    Cut(work->transfer(), header.round, rule_, &slices_,
        work->bucket ? work->bucket->granule() : 1);
  }
  work->requests.clear();
  work->requests.resize(slices_.size());
  work->unanswered = slices_.size();
  if (!served) CopyOwnPart(work->transfer(), settings_.worker);
  for (const Slice& slice : slices_) {
    Request& request = work->requests[header.slice];
    request = RequestFor(*work, slice, header);
    request.channel = channels_[slice.server].get();
    request.channel->Queue(&request);
    ++header.slice;
  }
}

// The oldest transfer for whose timeout nothing has moved, or null.
const TransferWork* Worker::FindLate(Clock::time_point now) const {
  const Clock::time_point moved_at = moved_at_.load(std::memory_order_relaxed);
  const TransferWork* late = nullptr;
  for (const TransferWork* work : active_) {
    const Clock::time_point deadline = work->DeadlineAfter(moved_at);
    if (now < deadline || work->unanswered == 0) continue;
    if (!late || work->number < late->number) late = work;
  }
  return late;
}

void Worker::Probe(const TransferWork* work, Clock::time_point now) {
  probing_ = true;
  decide_at_ = now + kProbeTime;
  for (const auto& channel : channels_) channel->Probe(work);
}

// When a transfer is late all servers are asked who is missing. One that does not answer is at
// fault itself, else whom another has named. Where none is named the missing ranks still move: they
// are asked again.
void Worker::CheckTime(Clock::time_point now) {
  for (const auto& channel : channels_) channel->CheckConnection(now);
  if ((probing_ || !refusal_.ok()) && now < decide_at_) return;
  const TransferWork* const late = FindLate(now);
  for (const auto& channel : channels_) {
    if (!probing_ || !channel->is_silent() || (refusal_.ok() && !late)) continue;
    const std::string what =
        late ? Describe(late->transfer(), late->operation).c_str() : refusal_.message();
    const ServerAddress& address = channel->address();
    return Fail(Status::Error(StatusCode::kTimeout, "%s does not answer, and nothing moves: %s",
                              Describe(address).c_str(), what.c_str())
                    .WithRank(address.member));
  }
  if (!refusal_.ok()) return Fail(refusal_);
  if (late && probing_) moves_.fetch_add(1, std::memory_order_relaxed);
  probing_ = false;
  if (late) Probe(late, now);
}

// No step runs any more: the thread has left its loop, and callers leave theirs when failed() is
// set. Closed sockets keep memory for their linger time at most, and only then the works end that it
// is of.
void Worker::FailAll() {
  Status farewell, leave;
  {
    const std::lock_guard lock(mutex_);
    farewell = leave = farewell_;
    if (orderly_) leave = Status::Error(StatusCode::kAborted, "%s", farewell.message());
  }
  {
    const std::lock_guard progress(progress_);
    TakeInbox();  // nothing comes after it: Submit looks at reason_
    for (const auto& channel : channels_) channel->Close(leave);
    for (TransferWork* work : active_) {
      if (work->unanswered > 0) EndUse(work);
    }
  }
  if (settings_.on_failure) settings_.on_failure(farewell);
  const auto complete_unused = [this] {
    std::unique_lock progress(progress_);
    kit::PooledWork* const unused = TakeUnused();
    progress.unlock();
    Complete(unused);
  };
  complete_unused();
  context_.close();  // when it returns libzmq's threads have ended, and with them all use of memory
  complete_unused();
}

void Worker::EndUse(TransferWork* work) noexcept {
  // The last one must see what all others did to the work.
  if (work->memory_uses.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::lock_guard lock(mutex_);
  work->next = unused_;
  unused_ = work;
  wake_up_->Signal();
}

// A list by kit::PooledWork::next; a work is in one list at most.
kit::PooledWork* Worker::TakeUnused() {
  kit::PooledWork* unused = nullptr;
  {
    const std::lock_guard lock(mutex_);
    unused = std::exchange(unused_, nullptr);
  }
  for (kit::PooledWork* work = unused; work; work = work->next) {
    active_.erase(static_cast<TransferWork*>(work));
  }
  return unused;
}

void Worker::Complete(kit::PooledWork* unused) noexcept {
  if (!unused) return;
  const Status reason = this->reason();
  while (unused) {
    kit::PooledWork* const next = unused->next;
    const bool answered = static_cast<TransferWork*>(unused)->unanswered == 0;
    unused->Complete(answered ? Status() : reason);
    unused = next;
  }
}

}  // namespace engine::zmq_ps
