#include "worker.h"

#include <algorithm>
#include <utility>

#include "describe.h"
#include "thread_setup.h"

namespace engine::zmq_ps {
namespace {

constexpr int kIdleMs = 500;
constexpr int kBusyMs = 20;
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

Worker::Worker(WorkerSettings settings)
    : settings_(std::move(settings)),
      rule_{.servers = static_cast<uint32_t>(settings_.servers.size()),
            .world_size = settings_.world_size,
            .slice_bytes = settings_.slice_bytes,
            .min_slice_bytes = settings_.min_slice_bytes},
      context_(settings_.io_threads) {
  OpenLinks();
  thread_ = std::thread([this] { Loop(); });
}

void Worker::OpenLinks() {
  for (const ServerAddress& address : settings_.servers) {
    auto server = std::make_unique<Server>();
    server->address = address;
    auto link = std::make_unique<DealerLink>(context_, settings_.worker, address.endpoint,
                                             address.public_key, settings_.keys,
                                             SocketSettingsOf(settings_));
    server->monitor = std::make_unique<Monitor>(context_, link->raw(),
                                                "server" + std::to_string(servers_.size()));
    link->Connect();
    server->link = settings_.wrap ? settings_.wrap(std::move(link)) : std::move(link);
    SayHello(*server);
    servers_.push_back(std::move(server));
  }
  poll_items_.push_back({nullptr, wake_up_.descriptor(), ZMQ_POLLIN, 0});
  for (const auto& server : servers_) {
    poll_items_.push_back({server->link->socket(), 0, ZMQ_POLLIN, 0});
    poll_items_.push_back({server->monitor->socket(), 0, ZMQ_POLLIN, 0});
  }
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
}

Status Worker::Submit(PooledWork* work) noexcept {
  const std::lock_guard lock(mutex_);
  if (!reason_.ok()) return reason_;
  work->next = nullptr;
  *inbox_end_ = work;
  inbox_end_ = &work->next;
  wake_up_.Signal();
  return {};
}

void Worker::Abort(const Status& reason, const Status& farewell) noexcept {
  const std::lock_guard lock(mutex_);
  if (!reason_.ok()) return;
  reason_ = reason;
  farewell_ = farewell;
  failed_.store(true, std::memory_order_release);
  wake_up_.Signal();
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
  try {
    while (!failed()) Step();
  } catch (const std::exception& error) {
    const auto rank = static_cast<int32_t>(settings_.worker);
    FailFound(Status::Error(StatusCode::kInternal, "the worker's thread failed: %s", error.what())
                  .WithRank(rank));
  }
  FailAll();
}

void Worker::Step() {
  TakeInbox();
  for (size_t i = 0; i < servers_.size(); ++i) {
    SendTo(*servers_[i]);
    const bool waits = !servers_[i]->pushes.empty() || !servers_[i]->control.empty();
    poll_items_[1 + 2 * i].events =
        static_cast<short>(waits ? ZMQ_POLLIN | ZMQ_POLLOUT : ZMQ_POLLIN);
  }
  const bool owes = std::any_of(servers_.begin(), servers_.end(),
                                [](const auto& server) { return !server->acks.empty(); });
  const int idle_ms = active_.empty() && welcomed_ ? kIdleMs : kBusyMs;
  zmq_poll(poll_items_.data(), static_cast<int>(poll_items_.size()), owes ? kOwingMs : idle_ms);
  if (poll_items_[0].revents) wake_up_.Clear();
  for (const auto& server : servers_) {
    HandleEvents(*server);
    ReceiveFrom(*server);
  }
  const Clock::time_point now = Clock::now();
  if (now >= next_look_) {
    next_look_ = now + std::chrono::milliseconds(kBusyMs);
    LookAtClock(now);
  }
  CompleteUnused();
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
  TakeInbox();  // nothing comes after it: Submit looks at reason_
  SayGoodbye(farewell);
  if (settings_.on_failure) settings_.on_failure(farewell);
  for (PooledWork* work : active_) {
    if (work->unanswered > 0) DropUse(work);
  }
  const Clock::time_point deadline = Clock::now() + kMemoryPatience;
  while (!active_.empty() && Clock::now() < deadline) {
    CompleteUnused();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(kBusyMs), [&] { return unused_ != nullptr; });
  }
  ENGINE_CHECK(active_.empty(), "%zu transfers are still in the hands of libzmq", active_.size());
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

void Worker::ForgetMemory(void*, void* work) noexcept {
  auto* const pooled = static_cast<PooledWork*>(work);
  pooled->worker->DropUse(pooled);
}

void Worker::DropUse(PooledWork* work) noexcept {
  // The last one must see what all others did to the work.
  if (work->memory_uses.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::lock_guard lock(mutex_);
  work->next = unused_;
  unused_ = work;
  wake_up_.Signal();
  changed_.notify_all();
}

void Worker::CompleteUnused() {
  PooledWork* work = nullptr;
  Status reason;
  {
    const std::lock_guard lock(mutex_);
    work = std::exchange(unused_, nullptr);
    reason = reason_;
  }
  while (work) {
    PooledWork* const next = work->next;
    active_.erase(work);
    work->Complete(work->unanswered == 0 ? Status() : reason);
    work = next;
  }
}

}  // namespace engine::zmq_ps
