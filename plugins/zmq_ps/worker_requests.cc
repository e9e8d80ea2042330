// The requests of a worker: how they travel, and what becomes of them.
#include <algorithm>
#include <span>
#include <utility>

#include "describe.h"
#include "request_data.h"
#include "worker.h"

namespace engine::zmq_ps {
namespace {

constexpr int kMaxReceivesPerStep = 4;
// A server lets 64 answers or 8 slices be on their way.
constexpr size_t kAcksTogether = 16;
constexpr uint64_t kAckedSlices = 3;
constexpr auto kAckDelay = std::chrono::milliseconds(2);
constexpr size_t kMaxControl = 1024;
// A server refuses what is late and can say who is missing; without a word from it by then, it is
// the server that is late.
constexpr auto kServersWord = std::chrono::milliseconds(1000);
// For which the news that a rank is lost waits for a better reason.
constexpr auto kHearsay = std::chrono::milliseconds(200);

std::span<const uint8_t> BytesOf(const ::zmq::message_t& message) {
  return {static_cast<const uint8_t*>(message.data()), message.size()};
}

}  // namespace

void Worker::Begin(PooledWork* work) {
  active_.insert(work);
  work->worker = this;
  const bool served = IsServed(work->operation);
  work->match_key = settings_.ordered && !served ? 0 : work->transfer().key;
  work->round = served ? 1 : ++rounds_[work->match_key];
  Transfer matched = work->transfer();
  matched.key = work->match_key;
  if (work->operation == Operation::kLastStep) {
    CutForAll(rule_, &work->slices);
  } else {
    Cut(matched, work->round, rule_, &work->slices, work->unit ? work->unit->granule() : 1);
  }
  work->requests.clear();
  work->requests.resize(work->slices.size());
  work->unanswered = work->slices.size();
  if (!served) CopyOwnPart(work->transfer(), settings_.worker);
  for (size_t i = 0; i < work->slices.size(); ++i) {
    Request& request = work->requests[i];
    request = {.work = work, .slice = work->slices[i], .index = static_cast<uint32_t>(i)};
    FindRows(*work, &request);
    QueuePush(&request);
  }
}

// The queue keeps the work alive.
void Worker::QueuePush(Request* request) {
  request->work->memory_uses.fetch_add(1, std::memory_order_relaxed);
  request->queued = true;
  // What asks and brings nothing does not wait behind tensors; its priority is for the answer.
  const Operation operation = request->work->operation;
  const bool asks = operation == Operation::kPull || operation == Operation::kLoad;
  const int32_t priority = asks ? INT32_MAX : request->work->transfer().priority;
  servers_[request->slice.server]->pushes.Push(priority, request);
}

Header Worker::HeaderOf(MessageKind kind) const {
  return {.kind = kind,
          .worker = settings_.worker,
          .world_size = settings_.world_size,
          .incarnation = settings_.incarnation};
}

void Worker::Acknowledge(Server& server, uint64_t request, uint64_t bytes) {
  if (server.acks.empty()) server.first_ack = Clock::now();
  server.acks.push_back(request);
  server.acked_bytes += bytes;
}

// Not each at once: an acknowledgement wakes two threads of the server. But long before its window
// is full.
bool Worker::AcksAreDue(const Server& server) const {
  if (server.acks.empty()) return false;
  return server.acks.size() >= kAcksTogether ||
         server.acked_bytes >= kAckedSlices * settings_.slice_bytes || failed() ||
         Clock::now() >= server.first_ack + kAckDelay;
}

void Worker::SendTo(Server& server) {
  if (AcksAreDue(server)) {
    for (size_t first = 0; first < server.acks.size(); first += kMaxRequestsPerHeader) {
      const size_t last = std::min(server.acks.size(), first + kMaxRequestsPerHeader);
      Header ack = HeaderOf(MessageKind::kAck);
      ack.requests.assign(server.acks.begin() + static_cast<ptrdiff_t>(first),
                          server.acks.begin() + static_cast<ptrdiff_t>(last));
      server.control.push_back(std::move(ack));
    }
    server.acks.clear();
    server.acked_bytes = 0;
  }
  if (!SendControl(server)) return;
  while (!server.pushes.empty()) {
    Request* const request = server.pushes.top();
    if (!request->done &&
        (!server.lent.HasRoom(server.ahead.messages()) || !SendPush(server, *request))) {
      return server.ahead.Full(Clock::now());
    }
    server.pushes.Pop();
    request->queued = false;
    DropUse(request->work);
  }
  server.ahead.Drained();
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
  Header header = HeaderOf(MessageKind::kPush);
  header.request = request.id ? request.id : server.next_request;
  header.key = work.match_key;
  header.round = work.round;
  header.slice = request.index;
  header.spec = SpecOf(work, request.slice);
  header.priority = transfer.priority;
  header.timeout_ms = std::max<int64_t>(MillisecondsUntil(work.deadline()), 1);
  header.sequence = transfer.sequence;
  if (IsServed(work.operation)) header.served = ServedOf(work, request);
  Message message;
  Encode(header, &encoded_);
  message.header.rebuild(encoded_.data(), encoded_.size());
  AttachData(request, &message);
  const size_t bytes = message.body.size();
  if (server.link->Send(message) != SendResult::kSent) return false;
  server.pushed_bytes.fetch_add(bytes, std::memory_order_relaxed);
  server.ahead.Sent(bytes);
  if (request.id == 0) {
    request.id = server.next_request++;
    server.unanswered.emplace(request.id, &request);
  }
  request.heard = Clock::now();
  work.MarkStarted();
  return true;
}

::zmq::message_t Worker::Lend(Request& request, const void* data, size_t bytes) {
  if (bytes == 0) return {};
  ::zmq::message_t message(const_cast<void*>(data), bytes, ForgetMemory, &request);
  request.work->memory_uses.fetch_add(1, std::memory_order_relaxed);
  servers_[request.slice.server]->lent.Lend();
  return message;
}

void Worker::AttachData(Request& request, Message* message) {
  const PooledWork& work = *request.work;
  const Transfer& transfer = work.transfer();
  const SliceSpec spec = SpecOf(work, request.slice);
  const bool own_part = work.operation == Operation::kAllGather;
  const auto lend_slice = [&] {
    message->body = Lend(
        request,
        static_cast<const char*>(transfer.send) + ByteOffset(transfer, request.slice, own_part),
        spec.bytes());
  };
  if (work.served.sparse) {
    if (work.operation == Operation::kPush) message->body = GatherRows(work, request);
    message->rows =
        Lend(request, transfer.rows + request.first_row, request.row_count * sizeof(int32_t));
  } else if (work.operation == Operation::kPush || work.operation == Operation::kStore) {
    lend_slice();
  } else if (work.operation == Operation::kRegister) {
    const auto spans = SpansOf(*work.unit, spec.offset, spec.count);
    message->body.rebuild(spans.data(), spans.size() * sizeof(spans[0]));
  } else if (Contributes(spec, settings_.worker)) {
    lend_slice();
  }
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
        FailFound(Status::Error(StatusCode::kRendezvous, "%s refused the key of rank %u",
                                Describe(server.address).c_str(), settings_.worker)
                      .WithRank(server.address.blame()));
        break;
    }
  }
}

void Worker::Handle(Server& server, Message& message) {
  Header header;
  const char* const objection = Decode(BytesOf(message.header), &header);
  if (objection) {
    return FailFound(Status::Error(StatusCode::kInternal, "%s sent a broken message: %s",
                                   Describe(server.address).c_str(), objection)
                         .WithRank(server.address.blame()));
  }
  switch (header.kind) {
    case MessageKind::kWelcome:
      return HandleWelcome(server, header);
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

// One that takes the place of a lost rank counts on where the others are: see parameter_server.md.
void Worker::HandleWelcome(Server& server, const Header& header) {
  if (!server.welcomed && settings_.incarnation > 0) {
    uint64_t& round = rounds_[0];
    round = std::max(round, header.round);
  }
  server.welcomed = true;
  const bool all = std::all_of(servers_.begin(), servers_.end(),
                               [](const auto& other) { return other->welcomed; });
  const std::lock_guard lock(mutex_);
  welcomed_ = all;
  changed_.notify_all();
}

void Worker::HandleAnswer(Server& server, const Header& header, const ::zmq::message_t& body) {
  Acknowledge(server, header.request, body.size());  // also for one that came again
  const auto found = server.unanswered.find(header.request);
  if (found == server.unanswered.end()) return;
  Request& request = *found->second;
  PooledWork& work = *request.work;
  if (header.key != work.match_key || header.round != work.round ||
      header.spec != SpecOf(work, request.slice) ||
      body.size() != AnswerBytes(work, request, settings_.worker)) {
    return FailFound(Status::Error(StatusCode::kInternal, "%s answered %s with something else",
                                   Describe(server.address).c_str(), Describe(work).c_str())
                         .WithRank(server.address.blame()));
  }
  TakeAnswer(work, request, body.data(), body.size());
  work.last_step = std::min(work.last_step, header.served.step);
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
    if (server.unanswered.count(id) == 0 && id < server.next_request) Acknowledge(server, id, 0);
  }
}

void Worker::LookAtClock(Clock::time_point now) {
  if (!hearsay_.ok() && now >= believe_at_) return FailFound(hearsay_);
  const auto patience = std::chrono::milliseconds(settings_.lost_after_ms);
  for (const auto& server : servers_) {
    if (!server->welcomed) SayHello(*server);
    const bool needed = !server->unanswered.empty() || !server->pushes.empty();
    if (needed && server->down_since && now >= *server->down_since + patience) {
      return FailFound(Status::Error(StatusCode::kPeerLost, "%s closed its connection",
                                     Describe(server->address).c_str())
                           .WithRank(server->address.blame()));
    }
    AskAbout(*server, now);
  }
  LookAtDeadlines(now);
}

void Worker::LookAtDeadlines(Clock::time_point now) {
  for (const PooledWork* work : active_) {
    if (now < work->deadline() + kServersWord || work->unanswered == 0) continue;
    const auto request = std::find_if(work->requests.begin(), work->requests.end(),
                                      [](const Request& r) { return !r.done; });
    const ServerAddress& address = servers_[request->slice.server]->address;
    return FailFound(Status::Error(StatusCode::kTimeout, "%s got no answer from %s within %lld ms",
                                   Describe(*work).c_str(), Describe(address).c_str(),
                                   static_cast<long long>(work->transfer().timeout_ms))
                         .WithRank(address.blame()));
  }
}

void Worker::AskAbout(Server& server, Clock::time_point now) {
  const auto patience = std::chrono::milliseconds(settings_.resend_ms);
  Header probe = HeaderOf(MessageKind::kProbe);
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
  server.control.push_back(HeaderOf(MessageKind::kHello));
}

}  // namespace engine::zmq_ps
