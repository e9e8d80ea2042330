#include "worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "describe.h"
#include "thread_setup.h"

namespace engine::zmq_ps {
namespace {

constexpr int kIdleMs = 500;
constexpr int kBusyMs = 20;
constexpr int kMaxReceivesPerStep = 64;
constexpr size_t kMaxControl = 1024;
// A server refuses what is late and can say who is missing; without a word from it by then, it is
// the server that is late.
constexpr auto kServersWord = std::chrono::milliseconds(1000);
// For which the news that a rank is lost waits for a better reason.
constexpr auto kHearsay = std::chrono::milliseconds(200);
// Closed sockets let go of memory within their linger time.
constexpr auto kMemoryPatience = std::chrono::seconds(3);

std::span<const uint8_t> BytesOf(const ::zmq::message_t& message) {
  return {static_cast<const uint8_t*>(message.data()), message.size()};
}

SliceSpec SpecOf(const PooledWork& work, const Slice& slice) {
  const Transfer& transfer = work.transfer();
  const bool is_barrier = transfer.kind == TransferKind::kBarrier;
  return {.transfer = transfer.kind,
          .dtype = is_barrier ? DType::kFloat32 : transfer.dtype,
          .reduction = is_barrier ? Reduction::kSum : transfer.reduction,
          .root = transfer.kind == TransferKind::kBroadcast ? slice.owner : 0,
          .owner = slice.owner,
          .slices = static_cast<uint32_t>(work.slices.size()),
          .offset = slice.offset,
          .count = slice.count,
          .total = is_barrier ? 0 : static_cast<uint64_t>(transfer.count),
          .tensor = transfer.key};
}

// Where the slice lies in the caller's buffers. Of a reduce-scatter `recv` is the own part only, of
// an all-gather `send` is.
size_t ByteOffset(const Transfer& transfer, const Slice& slice, bool buffer_is_own_part) {
  uint64_t first = slice.offset;
  if (buffer_is_own_part) first -= slice.owner * static_cast<uint64_t>(transfer.count);
  return static_cast<size_t>(first) * SizeOf(transfer.dtype);
}

// What a rank has itself and no server needs to bring.
void CopyOwnPart(const Transfer& transfer, uint32_t rank) {
  const size_t bytes = static_cast<size_t>(transfer.count) * SizeOf(transfer.dtype);
  if (bytes == 0 || !transfer.recv || !transfer.send) return;
  char* target = static_cast<char*>(transfer.recv);
  if (transfer.kind == TransferKind::kAllGather) {
    target += rank * bytes;
  } else if (transfer.kind != TransferKind::kBroadcast ||
             transfer.root != static_cast<int32_t>(rank)) {
    return;
  }
  if (target != transfer.send) std::memcpy(target, transfer.send, bytes);
}

SocketSettings SocketSettingsOf(const WorkerSettings& settings) {
  return {.max_message_bytes =
              static_cast<int64_t>(std::max<uint64_t>(settings.slice_bytes, kMaxHeaderBytes)),
          .buffer_bytes = settings.buffer_bytes};
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
                           "the parameter server of rank %d at %s did not answer in time: check "
                           "that this host can reach it",
                           server->address.rank, server->address.endpoint.c_str())
          .WithRank(server->address.rank);
    }
    return Status(worker->reason_);
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot connect to parameter servers: %s",
                         error.what());
  }
}

Worker::~Worker() {
  const auto rank = static_cast<int32_t>(settings_.worker);
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
  const bool idle = active_.empty() && welcomed_;
  zmq_poll(poll_items_.data(), static_cast<int>(poll_items_.size()), idle ? kIdleMs : kBusyMs);
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

void Worker::Begin(PooledWork* work) {
  active_.insert(work);
  work->worker = this;
  work->match_key = settings_.ordered ? 0 : work->transfer().key;
  work->round = ++rounds_[work->match_key];
  Transfer matched = work->transfer();
  matched.key = work->match_key;
  Cut(matched, work->round, rule_, &work->slices);
  work->requests.clear();
  work->requests.resize(work->slices.size());
  work->unanswered = work->slices.size();
  CopyOwnPart(work->transfer(), settings_.worker);
  for (size_t i = 0; i < work->slices.size(); ++i) {
    Request& request = work->requests[i];
    request = {.work = work, .slice = work->slices[i], .index = static_cast<uint32_t>(i)};
    QueuePush(&request);
  }
}

// The queue keeps the work alive.
void Worker::QueuePush(Request* request) {
  request->work->memory_uses.fetch_add(1, std::memory_order_relaxed);
  request->queued = true;
  servers_[request->slice.server]->pushes.Push(request->work->transfer().priority, request);
}

void Worker::SendTo(Server& server) {
  if (!server.acks.empty()) {
    for (size_t first = 0; first < server.acks.size(); first += kMaxRequestsPerHeader) {
      const size_t last = std::min(server.acks.size(), first + kMaxRequestsPerHeader);
      Header ack{.kind = MessageKind::kAck,
                 .worker = settings_.worker,
                 .world_size = settings_.world_size};
      ack.requests.assign(server.acks.begin() + static_cast<ptrdiff_t>(first),
                          server.acks.begin() + static_cast<ptrdiff_t>(last));
      server.control.push_back(std::move(ack));
    }
    server.acks.clear();
  }
  if (!SendControl(server)) return;
  while (!server.pushes.empty()) {
    Request* const request = server.pushes.top();
    if (!request->done && !SendPush(server, *request)) return;
    server.pushes.Pop();
    request->queued = false;
    DropUse(request->work);
  }
}

bool Worker::SendControl(Server& server) {
  while (!server.control.empty()) {
    if (!server.link->Writable()) return false;
    Message message;
    Encode(server.control.front(), &encoded_);
    message.header.rebuild(encoded_.data(), encoded_.size());
    if (server.link->Send(message) != SendResult::kSent) return false;
    server.control.pop_front();
  }
  return true;
}

bool Worker::SendPush(Server& server, Request& request) {
  if (!server.link->Writable()) return false;
  PooledWork& work = *request.work;
  const Transfer& transfer = work.transfer();
  Header header{.kind = MessageKind::kPush,
                .worker = settings_.worker,
                .world_size = settings_.world_size,
                .request = request.id ? request.id : server.next_request,
                .key = work.match_key,
                .round = work.round,
                .slice = request.index,
                .spec = SpecOf(work, request.slice),
                .priority = transfer.priority,
                .timeout_ms = std::max<int64_t>(MillisecondsUntil(work.deadline()), 1),
                .sequence = transfer.sequence};
  Message message;
  Encode(header, &encoded_);
  message.header.rebuild(encoded_.data(), encoded_.size());
  const size_t bytes = header.spec.bytes();
  if (bytes > 0 && Contributes(header.spec, settings_.worker)) {
    const bool own_part = transfer.kind == TransferKind::kAllGather;
    auto* const data = static_cast<char*>(const_cast<void*>(transfer.send)) +
                       ByteOffset(transfer, request.slice, own_part);
    work.memory_uses.fetch_add(1, std::memory_order_relaxed);
    message.body.rebuild(data, bytes, ForgetMemory, &work);
    server.pushed_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  if (server.link->Send(message) != SendResult::kSent) return false;
  if (request.id == 0) {
    request.id = server.next_request++;
    server.unanswered.emplace(request.id, &request);
  }
  request.heard = Clock::now();
  work.MarkStarted();
  return true;
}

void Worker::ReceiveFrom(Server& server) {
  Message message;
  for (int i = 0; i < kMaxReceivesPerStep && server.link->Receive(&message); ++i) {
    Handle(server, message);
  }
}

void Worker::HandleEvents(Server& server) {
  ConnectionEvent event;
  while (server.monitor->Next(&event)) {
    switch (event.kind) {
      case ConnectionEvent::Kind::kAccepted:
        break;  // of servers only
      case ConnectionEvent::Kind::kUp:
        if (server.down_since) SayHello(server);  // so that it knows the new connection
        server.down_since.reset();
        break;
      case ConnectionEvent::Kind::kDown:
        if (!server.down_since) server.down_since = Clock::now();
        break;
      case ConnectionEvent::Kind::kRefused:
        if (server.welcomed) break;
        FailFound(Status::Error(StatusCode::kRendezvous,
                                "the parameter server of rank %d at %s refused the key of rank %u",
                                server.address.rank, server.address.endpoint.c_str(),
                                settings_.worker)
                      .WithRank(server.address.rank));
        break;
    }
  }
}

void Worker::Handle(Server& server, Message& message) {
  Header header;
  const char* const objection = Decode(BytesOf(message.header), &header);
  if (objection) {
    return FailFound(Status::Error(StatusCode::kInternal,
                                   "the parameter server of rank %d sent a broken message: %s",
                                   server.address.rank, objection)
                         .WithRank(server.address.rank));
  }
  switch (header.kind) {
    case MessageKind::kWelcome: {
      server.welcomed = true;
      const bool all = std::all_of(servers_.begin(), servers_.end(),
                                   [](const auto& other) { return other->welcomed; });
      const std::lock_guard lock(mutex_);
      welcomed_ = all;
      changed_.notify_all();
      return;
    }
    case MessageKind::kAnswer:
      return HandleAnswer(server, header, message.body);
    case MessageKind::kRefusal:
      if (header.request == 0 || server.unanswered.count(header.request) > 0) {
        HandleRefusal(header.status);
      }
      return;
    case MessageKind::kMissing:
      return HandleMissing(server, header);
    case MessageKind::kProbe:
      return HandleProbe(server, header);
    case MessageKind::kHello:
    case MessageKind::kPush:
    case MessageKind::kAck:
    case MessageKind::kLeave:
      return;  // not for workers
  }
}

void Worker::HandleAnswer(Server& server, const Header& header, const ::zmq::message_t& body) {
  server.acks.push_back(header.request);  // also for one that came again
  const auto found = server.unanswered.find(header.request);
  if (found == server.unanswered.end()) return;
  Request& request = *found->second;
  PooledWork& work = *request.work;
  const Transfer& transfer = work.transfer();
  const SliceSpec spec = SpecOf(work, request.slice);
  const size_t bytes = Receives(spec, settings_.worker) ? spec.bytes() : 0;
  if (header.key != work.match_key || header.round != work.round || header.spec != spec ||
      body.size() != bytes) {
    return FailFound(Status::Error(StatusCode::kInternal,
                                   "the parameter server of rank %d answered %s with something "
                                   "else",
                                   server.address.rank, Describe(transfer).c_str())
                         .WithRank(server.address.rank));
  }
  if (bytes > 0) {
    const bool own_part = transfer.kind == TransferKind::kReduceScatter;
    std::memcpy(static_cast<char*>(transfer.recv) + ByteOffset(transfer, request.slice, own_part),
                body.data(), bytes);
  }
  request.done = true;
  server.unanswered.erase(found);
  if (--work.unanswered == 0) DropUse(&work);
}

// When a run ends because of one rank, every rank is told why by its engine, and that reason is
// better than what servers see of it.
void Worker::HandleRefusal(const Status& reason) {
  if (reason.code() != StatusCode::kPeerLost) return FailFound(reason);
  if (!hearsay_.ok()) return;
  hearsay_ = reason;
  believe_at_ = Clock::now() + kHearsay;
}

void Worker::HandleMissing(Server& server, const Header& header) {
  for (const uint64_t id : header.requests) {
    const auto found = server.unanswered.find(id);
    if (found != server.unanswered.end() && !found->second->queued) QueuePush(found->second);
  }
}

void Worker::HandleProbe(Server& server, const Header& header) {
  for (const uint64_t id : header.requests) {
    if (server.unanswered.count(id) == 0 && id < server.next_request) server.acks.push_back(id);
  }
}

void Worker::LookAtClock(Clock::time_point now) {
  if (!hearsay_.ok() && now >= believe_at_) return FailFound(hearsay_);
  const auto patience = std::chrono::milliseconds(settings_.lost_after_ms);
  for (const auto& server : servers_) {
    if (!server->welcomed) SayHello(*server);
    const bool needed = !server->unanswered.empty() || !server->pushes.empty();
    if (needed && server->down_since && now >= *server->down_since + patience) {
      return FailFound(Status::Error(StatusCode::kPeerLost,
                                     "rank %d closed its connection (its parameter server at %s)",
                                     server->address.rank, server->address.endpoint.c_str())
                           .WithRank(server->address.rank));
    }
    AskAbout(*server, now);
  }
  for (const PooledWork* work : active_) {
    if (now < work->deadline() + kServersWord || work->unanswered == 0) continue;
    const auto request = std::find_if(work->requests.begin(), work->requests.end(),
                                      [](const Request& r) { return !r.done; });
    const ServerAddress& address = servers_[request->slice.server]->address;
    return FailFound(Status::Error(StatusCode::kTimeout,
                                   "%s got no answer from the parameter server of rank %d within "
                                   "%lld ms",
                                   Describe(work->transfer()).c_str(), address.rank,
                                   static_cast<long long>(work->transfer().timeout_ms))
                         .WithRank(address.rank));
  }
}

void Worker::AskAbout(Server& server, Clock::time_point now) {
  const auto patience = std::chrono::milliseconds(settings_.resend_ms);
  Header probe{
      .kind = MessageKind::kProbe, .worker = settings_.worker, .world_size = settings_.world_size};
  for (auto& [id, request] : server.unanswered) {
    if (request->queued || now < request->heard + patience) continue;
    if (probe.requests.size() == kMaxRequestsPerHeader) break;
    request->heard = now;
    probe.requests.push_back(id);
  }
  if (!probe.requests.empty() && server.control.size() < kMaxControl) {
    server.control.push_back(std::move(probe));
  }
}

void Worker::SayHello(Server& server) {
  if (!server.control.empty()) return;
  server.control.push_back({.kind = MessageKind::kHello,
                            .worker = settings_.worker,
                            .world_size = settings_.world_size});
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
  Header leave{.kind = MessageKind::kLeave,
               .worker = settings_.worker,
               .world_size = settings_.world_size,
               .status = farewell};
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
