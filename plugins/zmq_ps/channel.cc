// Exactly once: a request is sent again when there is a new connection, because messages are lost
// with the former one only, and stays in unanswered_ until its answer is here. The server knows its
// number, so what it has seen it does not apply again. Answers that come twice are acknowledged
// twice and written once.
#include "channel.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "request_data.h"
#include "worker.h"

namespace engine::zmq_ps {

// Acknowledgements go together: each wakes two threads of the server, which until then keeps the
// answers and cannot update in the memory that they refer to.
constexpr size_t kAcksTogether = 16;
constexpr uint64_t kAckedSlices = 3;
constexpr auto kAckDelay = std::chrono::milliseconds(2);

std::string Describe(const ServerAddress& address) {
  const int32_t server = ServerOfId(address.member);
  const std::string name = server >= 0
                               ? "server " + std::to_string(server)
                               : "the parameter server of rank " + std::to_string(address.member);
  return name + " at " + address.endpoint;
}

Channel::Channel(const ServerAddress& address, const WorkerSettings& settings,
                 ::zmq::context_t& context, std::shared_ptr<WakeUp> wake_up, Worker& worker)
    : address_(address),
      settings_(settings),
      worker_(worker),
      link_(std::make_unique<DealerLink>(context, settings.worker, address.endpoint,
                                         address.public_key, settings.keys, settings.connection)),
      borrowed_(std::move(wake_up)) {}

Status Channel::Error(StatusCode code, const char* what) const {
  return Status::Error(code, "%s %s", Describe(address_).c_str(), what).WithRank(address_.member);
}

Header Channel::HeaderOf(MessageKind kind) const {
  Header header = SenderOf(settings_);
  header.kind = kind;
  return header;
}

// What asks and brings nothing does not wait behind tensors; its priority is for the answer.
void Channel::Queue(Request* request) {
  if (std::exchange(request->queued, true)) return;
  request->work->memory_uses.fetch_add(1, std::memory_order_relaxed);
  const Operation operation = request->work->operation;
  const bool asks = operation == Operation::kPull || operation == Operation::kLoad;
  requests_.Push(asks ? INT32_MAX : request->work->transfer().priority, request);
}

// kUp comes once a connection is ready for messages, kDown when it was closed by either side or by
// heartbeats. ZeroMQ connects again by itself.
void Channel::HandleEvents() {
  ConnectionEvent event;
  while (link_->monitor().Next(&event)) {
    switch (event.kind) {
      case ConnectionEvent::Kind::kAccepted:  // of servers only
        break;
      case ConnectionEvent::Kind::kUp:
        hello_due_ = true;
        down_since_.reset();
        for (const auto& [id, request] : unanswered_) Queue(request);
        break;
      case ConnectionEvent::Kind::kDown:
        if (!down_since_) down_since_ = Clock::now();
        break;
      case ConnectionEvent::Kind::kRefused:
        if (!welcomed_)
          worker_.Fail(Error(StatusCode::kRendezvous, "refused the key of this rank"));
        break;
    }
  }
}

// Also a server of which nothing is wanted now: later somebody would wait for it.
void Channel::CheckConnection(Clock::time_point now) {
  const auto lost_after = std::chrono::milliseconds(settings_.connection.lost_after_ms);
  if (!down_since_ || now < *down_since_ + lost_after) return;
  worker_.Fail(Error(StatusCode::kPeerLost, "closed its connection"));
}

bool Channel::IsReady() {
  const int events = EventsOf(link_->socket());
  if (events & ZMQ_POLLIN) return true;
  const bool waits = hello_due_ || probe_due_ || (!requests_.empty() && HasRoom());
  return waits && (events & ZMQ_POLLOUT);
}

void Channel::Receive() {
  Message message;
  for (int i = 0; i < kMaxReceivesPerStep && link_->Receive(&message); ++i) Handle(message);
}

// Servers of their own are all asked, so that one that does not answer is told from ranks that wait
// for it. A request that was not sent yet has number 0.
void Channel::Probe(const TransferWork* work) {
  probe_due_ = HeaderOf(MessageKind::kProbe);
  is_silent_ = true;
  if (!work) return;
  for (const Request& request : work->requests) {
    if (request.done || request.channel != this) continue;
    probe_due_->request = request.header.request;
    probe_due_->timeout_ms = work->timeout().count();
    return;
  }
}

void Channel::Handle(Message& message) {
  is_silent_ = false;
  Header header;
  const char* const objection = Decode(message.header, &header);
  if (objection) {
    const std::string what = std::string("sent a broken message: ") + objection;
    return worker_.Fail(Error(StatusCode::kInternal, what.c_str()));
  }
  switch (header.kind) {
    case MessageKind::kWelcome:
      if (!std::exchange(welcomed_, true)) worker_.Welcomed(header.round);
      return;
    case MessageKind::kAnswer:
      return HandleAnswer(header, message.body);
    case MessageKind::kRefusal:
      if (header.request > 0) Acknowledge(header.request, 0);
      if (header.request == 0 || unanswered_.count(header.request) > 0) {
        const Status reason = StatusOf(header, message.body);
        const bool is_its_own = reason.code() == StatusCode::kTimeout && reason.rank() == -1;
        worker_.Refused(is_its_own ? reason.WithRank(address_.member) : reason);
      }
      return;
    default:
      return;  // not for ranks
  }
}

// An answer must be to the request that it names, and of the size that this rank expects: it is
// written into the caller's memory.
void Channel::HandleAnswer(const Header& header, const ::zmq::message_t& body) {
  Acknowledge(header.request, body.size());
  const auto found = unanswered_.find(header.request);
  if (found == unanswered_.end()) return;
  Request& request = *found->second;
  TransferWork& work = *request.work;
  const Header& asked = request.header;
  if (header.key != asked.key || header.round != asked.round || header.spec != asked.spec ||
      body.size() != AnswerBytes(request)) {
    const Text what = Describe(work.transfer(), work.operation);
    return worker_.Fail(
        Error(StatusCode::kInternal,
              kit::Format("answered %s with something else", what.c_str()).c_str()));
  }
  TakeAnswer(request, body.data(), body.size());
  worker_.Moved();
  work.last_step = std::min(work.last_step, header.served.step);
  request.done = true;
  unanswered_.erase(found);
  if (--work.unanswered == 0) worker_.EndUse(&work);
}

void Channel::Acknowledge(uint64_t request, uint64_t bytes) {
  if (acks_.empty()) first_ack_ = Clock::now();
  acks_.push_back(request);
  acked_bytes_ += bytes;
}

bool Channel::AcksAreDue() const {
  return acks_.size() >= kAcksTogether ||
         acked_bytes_ >= kAckedSlices * settings_.connection.flow.slice_bytes ||
         Clock::now() >= first_ack_ + kAckDelay;
}

bool Channel::SendControl(const Header& header, ::zmq::message_t body) {
  if (!link_->Writable()) return false;
  Message message{.header = Encode(header), .body = std::move(body)};
  return link_->Send(message);
}

bool Channel::SendControl(bool all_acknowledgements) {
  if (hello_due_ && !SendControl(HeaderOf(MessageKind::kHello), {})) return false;
  hello_due_ = false;
  if (probe_due_ && !SendControl(*probe_due_, {})) return false;
  probe_due_.reset();
  if (acks_.empty() || (!all_acknowledgements && !AcksAreDue())) return true;
  constexpr size_t kMost = kMaxListBytes / sizeof(uint64_t);
  for (size_t first = 0; first < acks_.size(); first += kMost) {
    const size_t count = std::min(acks_.size() - first, kMost);
    // After a false some go again later, which does no harm.
    const Header header = HeaderOf(MessageKind::kAck);
    if (!SendControl(header, {&acks_[first], count * sizeof(uint64_t)})) return false;
  }
  acks_.clear();
  acked_bytes_ = 0;
  return true;
}

// Control messages first: the server waits for acknowledgements. Then requests by priority, as many
// as libzmq may hold for this server; one that was answered meanwhile need not go again.
void Channel::Send(bool all_acknowledgements) {
  if (!SendControl(all_acknowledgements)) return;
  for (; !requests_.empty(); requests_.Pop()) {
    Request* const request = requests_.top();
    if (!request->done && (!HasRoom() || !SendRequest(*request))) return;
    request->queued = false;
    worker_.EndUse(request->work);
  }
}

// A number is given when a request goes for the first time, so numbers are in the order of sending.
bool Channel::SendRequest(Request& request) {
  if (!link_->Writable()) return false;
  TransferWork& work = *request.work;
  Header header = request.header;
  const bool first = header.request == 0;
  if (first) header.request = next_request_;
  Message message{.header = Encode(header)};
  Attach(request, &message);
  if (!link_->Send(message)) return false;
  if (first) {
    request.header.request = next_request_++;
    unanswered_.emplace(request.header.request, &request);
  }
  work.MarkStarted();
  return true;
}

// The only tensor bytes that are copied into a message are rows, because they do not lie together.
void Channel::Attach(Request& request, Message* message) {
  const TransferWork& work = *request.work;
  const SliceSpec& spec = request.header.spec;
  const bool pushes = work.operation == Operation::kPush || work.operation == Operation::kStore;
  if (work.sparse()) {
    if (pushes) message->body = GatherRows(request);
    message->rows = Borrow(request, request.rows, request.row_count() * sizeof(int32_t));
  } else if (pushes || Contributes(spec, settings_.worker)) {
    const bool own_part = work.operation == Operation::kAllGather;
    const auto* const send = static_cast<const char*>(work.transfer().send);
    message->body = Borrow(request, send + ByteOffset(request, own_part), spec.bytes());
  } else if (work.operation == Operation::kRegister) {
    const auto spans = SpansOf(*work.bucket, spec.offset, spec.count);
    message->body.rebuild(spans.data(), spans.size() * sizeof(spans[0]));
  }
}

// The caller's memory, until libzmq gives it back on a thread of its own.
::zmq::message_t Channel::Borrow(Request& request, const void* data, size_t bytes) {
  if (bytes == 0) return {};
  const auto give_back = [](void*, void* hint) {
    const Request& ended = *static_cast<Request*>(hint);
    ended.channel->borrowed_.Return();
    ended.channel->worker_.Moved();
    ended.channel->worker_.EndUse(ended.work);
  };
  ::zmq::message_t message(const_cast<void*>(data), bytes, give_back, &request);
  request.work->memory_uses.fetch_add(1, std::memory_order_relaxed);
  borrowed_.Borrow();
  return message;
}

// What libzmq has, it gives back when its sockets close.
void Channel::Close(const Status& farewell) {
  try {
    for (; !requests_.empty(); requests_.Pop()) {
      requests_.top()->queued = false;
      worker_.EndUse(requests_.top()->work);
    }
    Message leave = Compose(HeaderOf(MessageKind::kLeave), farewell);
    if (SendControl(true) && link_->Writable()) (void)link_->Send(leave);
  } catch (const ::zmq::error_t&) {
    // The connection is beyond farewells.
  }
  link_.reset();
}

}  // namespace engine::zmq_ps
