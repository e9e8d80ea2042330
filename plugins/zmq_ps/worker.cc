#include "worker.h"

#include <algorithm>
#include <utility>

#include "describe.h"
#include "thread_setup.h"

namespace engine::zmq_ps {
namespace {

constexpr int kIdleMs = 500;
constexpr int kBusyMs = 20;
constexpr auto kGuestReturns = std::chrono::microseconds(1000);
constexpr int kOwingMs = 2;  // with acknowledgements that are not due yet
// Closed sockets let go of memory within their linger time.
constexpr auto kMemoryPatience = std::chrono::seconds(3);

SocketSettings SocketSettingsOf(const WorkerSettings& settings) {
  return {.max_message_bytes =
              static_cast<int64_t>(std::max<uint64_t>(settings.slice_bytes, kMaxHeaderBytes)),
          .buffer_bytes = settings.buffer_bytes,
          .heartbeat = settings.heartbeat};
}

}  // namespace

Worker::Server::Server(const ServerAddress& at, const WorkerSettings& settings,
                       std::shared_ptr<WakeUp> wake_up)
    : address(at), ahead(settings.slice_bytes, settings.buffer_bytes), lent(std::move(wake_up)) {}

Worker::Worker(WorkerSettings settings)
    : settings_(std::move(settings)),
      rule_{.servers = static_cast<uint32_t>(settings_.servers.size()),
            .world_size = settings_.world_size,
            .slice_bytes = settings_.slice_bytes,
            .min_slice_bytes = settings_.min_slice_bytes},
      context_(settings_.io_threads) {
  OpenLinks();
  thread_ = std::thread([this] { Loop(); });
  if (settings_.pool) settings_.pool->LetHelp(this);
}

void Worker::OpenLinks() {
  own_poll_.Add(wake_up_->descriptor());
  for (const ServerAddress& address : settings_.servers) {
    auto server = std::make_unique<Server>(address, settings_, wake_up_);
    auto link = std::make_unique<DealerLink>(context_, settings_.worker, address.endpoint,
                                             address.public_key, settings_.keys,
                                             SocketSettingsOf(settings_));
    server->monitor = std::make_unique<Monitor>(context_, link->raw(),
                                                "server" + std::to_string(servers_.size()));
    link->Connect();
    server->link = settings_.wrap ? settings_.wrap(std::move(link)) : std::move(link);
    SayHello(*server);
    own_poll_.AddSocket(server->link->socket());
    own_poll_.AddSocket(server->monitor->socket());
    servers_.push_back(std::move(server));
  }
  guest_poll_ = own_poll_;
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
    const bool settled = worker->changed_.wait_until(
        lock, deadline, [&] { return worker->welcomed_ || !worker->reason_.ok(); });
    if (!worker->reason_.ok()) return Status(worker->reason_);
    if (settled) return worker;
    lock.unlock();
    worker->Abort(Status::Error(StatusCode::kRendezvous, "not connected in time"),
                  Status::Error(StatusCode::kPeerLost, "not connected in time"));
    worker->thread_.join();
    for (const auto& server : worker->servers_) {
      if (server->welcomed) continue;
      return Status::Error(StatusCode::kRendezvous,
                           "%s did not answer in time: check that this host can reach it",
                           Describe(server->address).c_str())
          .WithRank(server->address.blame());
    }
    return Status(worker->reason_);
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot connect to parameter servers: %s",
                         error.what());
  }
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
  if (settings_.pool) settings_.pool->LetHelp(nullptr);
}

Status Worker::Submit(PooledWork* work) noexcept {
  const std::lock_guard lock(mutex_);
  if (!reason_.ok()) return reason_;
  work->next = nullptr;
  *inbox_end_ = work;
  inbox_end_ = &work->next;
  wake_up_->Signal();
  return {};
}

void Worker::Help(const PooledWork& work, Clock::time_point deadline) noexcept {
  if (guest_.exchange(true)) return;
  bool events = false;
  while (!work.terminal() && !failed() && Clock::now() < deadline) {
    const int wait_ms = TakeTurn(events, true);
    if (wait_ms == 0 || work.terminal()) continue;
    guest_poll_.Wait(static_cast<int>(
        std::min<int64_t>(wait_ms, std::max<int64_t>(MillisecondsUntil(deadline), 1))));
    events = SawEvents(guest_poll_);
  }
  const std::lock_guard lock(mutex_);
  guest_.store(false);
  if (thread_waits_) changed_.notify_all();
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

std::vector<uint64_t> Worker::PushedBytes() const {
  std::vector<uint64_t> bytes;
  for (const auto& server : servers_) bytes.push_back(server->pushed_bytes);
  return bytes;
}

void Worker::Loop() noexcept {
  PrepareThread("zmq_ps_worker");
  bool events = false;
  while (!failed()) {
    if (guest_) {
      WaitForGuest();
      continue;
    }
    const int wait_ms = TakeTurn(events, false);
    if (wait_ms > 0) own_poll_.Wait(wait_ms);
    // What the sockets have to say now may be for a guest: it looks itself.
    events = wait_ms > 0 && SawEvents(own_poll_);
  }
  FailAll();
}

// For a moment the thread only sleeps, and a guest that leaves need not wake it: who waits for one
// transfer after the other comes back before the thread has taken over.
void Worker::WaitForGuest() {
  std::unique_lock lock(mutex_);
  const auto left = [&] { return !guest_ || !reason_.ok(); };
  if (left()) return;
  changed_.wait_for(lock, kGuestReturns, [&] { return !reason_.ok(); });
  thread_waits_ = true;
  changed_.wait_for(lock, std::chrono::milliseconds(kIdleMs), left);
  thread_waits_ = false;
}

int Worker::TakeTurn(bool events, bool is_guest) {
  Outcome outcome;
  {
    const std::lock_guard turn(turn_);
    // What the thread does after a guest has begun might end the guest's work while it waits.
    if (failed() || (guest_ && !is_guest)) return 0;
    try {
      outcome = Step(events);
    } catch (const std::exception& error) {
      FailThrown(error);
    }
  }
  Complete(outcome.finished);
  return outcome.wait_ms;
}

Worker::Outcome Worker::Step(bool events) {
  wake_up_->Clear();
  TakeInbox();
  bool is_ready = false, owes = false;
  const Clock::time_point now = Clock::now();
  const bool look = now >= next_look_;
  for (const auto& server : servers_) {
    if (events || look) HandleEvents(*server);
    ReceiveFrom(*server);
    SendTo(*server);
    is_ready = is_ready || IsReady(*server);
    owes = owes || !server->acks.empty();
  }
  if (look) {
    next_look_ = now + std::chrono::milliseconds(kBusyMs);
    LookAtClock(now);
  }
  PooledWork* const finished = TakeUnused();
  const int idle_ms = active_.empty() && welcomed_ ? kIdleMs : kBusyMs;
  return {.wait_ms = is_ready ? 0 : owes ? kOwingMs : idle_ms, .finished = finished};
}

bool Worker::IsReady(Server& server) {
  const int events = EventsOf(server.link->socket());
  if (events & ZMQ_POLLIN) return true;
  const bool waits = !server.control.empty() ||
                     (!server.pushes.empty() && server.lent.HasRoom(server.ahead.messages()));
  return waits && (events & ZMQ_POLLOUT);
}

// The descriptors of a poll set: of signals, and then of each server's socket and its monitor.
bool Worker::SawEvents(const PollSet& poll) const {
  for (size_t i = 0; i < settings_.servers.size(); ++i) {
    if (poll.Saw(2 + 2 * i)) return true;
  }
  return false;
}

void Worker::TakeInbox() {
  PooledWork* work = nullptr;
  {
    const std::lock_guard lock(mutex_);
    work = std::exchange(inbox_, nullptr);
    inbox_end_ = &inbox_;
  }
  while (work) {
    PooledWork* const next = work->next;
    Begin(work);
    work = next;
  }
}

void Worker::FailThrown(const std::exception& error) {
  FailFound(Status::Error(StatusCode::kInternal, "the worker of the parameter servers failed: %s",
                          error.what())
                .WithRank(static_cast<int32_t>(settings_.worker)));
}

// Others are told the cause itself, so that they do not blame the messenger.
void Worker::FailFound(const Status& reason) {
  Abort(reason, reason.WithContext("rank %u gave up", settings_.worker));
}

void Worker::FailAll() {
  Status reason, farewell;
  {
    const std::lock_guard lock(mutex_);
    reason = reason_;
    farewell = farewell_;
  }
  {
    const std::lock_guard turn(turn_);
    TakeInbox();  // nothing comes after it: Submit looks at reason_
    SayGoodbye(farewell);
    for (PooledWork* work : active_) {
      if (work->unanswered > 0) DropUse(work);
    }
  }
  if (settings_.on_failure) settings_.on_failure(farewell);
  const Clock::time_point deadline = Clock::now() + kMemoryPatience;
  bool all = false;
  while (!all && Clock::now() < deadline) {
    PooledWork* unused = nullptr;
    {
      const std::lock_guard turn(turn_);
      unused = TakeUnused();
      all = active_.empty();
    }
    Complete(unused);
    if (all) break;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(kBusyMs), [&] { return unused_ != nullptr; });
  }
  ENGINE_CHECK(all, "transfers are still in the hands of libzmq");
}

// What is queued is thrown away; what libzmq has, it gives back when its sockets close.
void Worker::SayGoodbye(const Status& farewell) {
  Header leave = HeaderOf(MessageKind::kLeave);
  {
    const std::lock_guard lock(mutex_);
    leave.status =
        orderly_ ? Status::Error(StatusCode::kAborted, "%s", farewell.message()) : farewell;
  }
  for (const auto& server : servers_) {
    try {
      for (; !server->pushes.empty(); server->pushes.Pop()) {
        server->pushes.top()->queued = false;
        DropUse(server->pushes.top()->work);
      }
      server->control.push_back(leave);
      SendTo(*server);  // acknowledgements too
    } catch (const std::exception&) {
      // The connection is beyond goodbyes.
    }
    server->link.reset();
    server->monitor.reset();
  }
}

// On a thread of libzmq.
void Worker::ForgetMemory(void*, void* request) noexcept {
  PooledWork* const work = static_cast<Request*>(request)->work;
  Worker& worker = *work->worker;
  Server& server = *worker.servers_[static_cast<Request*>(request)->slice.server];
  server.lent.GiveBack();
  worker.DropUse(work);
}

void Worker::DropUse(PooledWork* work) noexcept {
  // The last one must see what all others did to the work.
  if (work->memory_uses.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::lock_guard lock(mutex_);
  work->next = unused_;
  unused_ = work;
  wake_up_->Signal();
  changed_.notify_all();
}

PooledWork* Worker::TakeUnused() {
  PooledWork* unused = nullptr;
  {
    const std::lock_guard lock(mutex_);
    unused = std::exchange(unused_, nullptr);
  }
  for (PooledWork* work = unused; work; work = work->next) active_.erase(work);
  return unused;
}

// Callbacks may submit the next transfers.
void Worker::Complete(PooledWork* unused) noexcept {
  if (!unused) return;
  const Status reason = this->reason();
  while (unused) {
    PooledWork* const next = unused->next;
    unused->Complete(unused->unanswered == 0 ? Status() : reason);
    unused = next;
  }
}

}  // namespace engine::zmq_ps
