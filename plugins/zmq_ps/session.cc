#include "session.h"

#include <chrono>
#include <cstring>
#include <utility>

namespace engine::zmq_ps {
namespace {

// A message over the memory of `bytes`, which keeps it until libzmq has sent it.
::zmq::message_t Share(::zmq::message_t& bytes, const std::shared_ptr<BorrowedBuffers>& count) {
  if (bytes.size() == 0) return {};
  struct Lease {
    ::zmq::message_t bytes;
    std::shared_ptr<BorrowedBuffers> count;
  };
  auto lease = std::make_unique<Lease>();
  lease->bytes.copy(bytes);
  lease->count = count;
  const auto end = [](void*, void* hint) {
    const std::unique_ptr<Lease> ended(static_cast<Lease*>(hint));
    ended->count->Return();
  };
  ::zmq::message_t message(lease->bytes.data(), lease->bytes.size(), end, lease.get());
  lease.release()->count->Borrow();
  return message;
}

}  // namespace

Session::Session(uint32_t worker, uint32_t workers, const FlowSettings& flow,
                 std::shared_ptr<WakeUp> wake_up)
    : worker_(worker),
      workers_(workers),
      wake_up_(std::move(wake_up)),
      ahead_of_link_(flow.ahead()),
      borrowed_(std::make_shared<BorrowedBuffers>(wake_up_)) {}

// Exactly once: a rank sends a request again until it has the answer, and an answer stays here
// until it is acknowledged. Numbers that were seen are never opened again, so what comes twice is
// answered twice and applied once. Messages are lost with a connection only, so both sides send
// again when there is a new one (kHello), and need no clock for it.
bool Session::IsNew(uint64_t request) const {
  return request > complete_ && ahead_.count(request) == 0;
}

PendingRequest& Session::Open(const Header& header) {
  ahead_.insert(header.request);
  while (ahead_.erase(complete_ + 1) > 0) ++complete_;
  PendingRequest& pending = pending_[header.request];
  pending.header = header;
  moved_at_ = Clock::now();
  return pending;
}

PendingRequest* Session::Find(uint64_t request) {
  const auto found = pending_.find(request);
  return found == pending_.end() ? nullptr : &found->second;
}

void Session::Answer(uint64_t request, const Status& status, ::zmq::message_t body) {
  PendingRequest* const pending = Find(request);
  if (!pending || pending->ready) return;
  pending->ready = true;
  pending->refusal = status;
  pending->body = std::move(body);
  pending->rows.rebuild();
  Queue(*pending);
}

void Session::Acknowledge(const ::zmq::message_t& requests) {
  moved_at_ = Clock::now();
  for (size_t at = 0; at + sizeof(uint64_t) <= requests.size(); at += sizeof(uint64_t)) {
    uint64_t request = 0;
    std::memcpy(&request, static_cast<const char*>(requests.data()) + at, sizeof(request));
    const PendingRequest* const pending = Find(request);
    if (pending && pending->ready) pending_.erase(request);
  }
}

void Session::Repeat(uint64_t request) {
  PendingRequest* const pending = Find(request);
  if (pending && pending->ready) Queue(*pending);
}

// What was lost goes first, as receipts do: others wait for it at the rank.
void Session::Queue(PendingRequest& pending) {
  if (std::exchange(pending.queued, true)) return;
  const bool first = pending.sent || pending.IsReceipt();
  answers_.Push(first ? INT32_MAX : pending.header.priority, pending.header.request);
}

// Any message proves that the rank is there, unless it came by the connection that was closed: then
// it has been in a queue of ZeroMQ.
void Session::Heard(int descriptor) {
  if (descriptor < 0 || descriptor == closed_) return;
  down_since_.reset();
  descriptor_ = descriptor;
}

// Descriptors tell connections apart: the monitor of a socket knows no peers. They are used again
// by the system, so a new connection with the number of the closed one counts.
bool Session::HandleEvent(const ConnectionEvent& event, Clock::time_point now) {
  if (event.kind == ConnectionEvent::Kind::kAccepted && closed_ == event.descriptor) {
    closed_ = -1;  // the number is in use again
  }
  if (event.kind != ConnectionEvent::Kind::kDown) return true;
  if (descriptor_ != event.descriptor) return false;
  closed_ = std::exchange(descriptor_, -1);
  down_since_ = now;
  return true;
}

bool Session::IsDown(Clock::time_point now, int64_t lost_after_ms) const {
  return down_since_ && now >= *down_since_ + std::chrono::milliseconds(lost_after_ms);
}

// After a new connection all that went by the former one and was not acknowledged may be lost.
void Session::Welcome(uint64_t last_round, bool again) {
  welcome_due_ = last_round;
  if (!again) return;
  for (auto& [request, pending] : pending_) {
    if (pending.sent) Queue(pending);
  }
}

// Its answers are forgotten; that it has expired it learns when it speaks again.
void Session::Leave(const Status& reason, bool expired) {
  left_ = reason;
  expired_ = expired;
  answers_.Clear();
  pending_.clear();
  welcome_due_.reset();
}

void Session::Refuse(const Status& reason) {
  if (!refusal_due_) refusal_due_ = reason;
}

void Session::RefuseExpired() {
  if (!expired_) return;
  Refuse(left_->WithContext(
      "rank %u has expired: it was without a connection for too long, or was replaced", worker_));
}

// Another process has the rank now: its requests start at one again.
void Session::Renew(uint32_t incarnation) {
  incarnation_ = incarnation;
  left_.reset();
  expired_ = false;
  refusal_due_.reset();
  moved_at_ = Clock::now();
  complete_ = 0;
  ahead_.clear();
  borrowed_ = std::make_shared<BorrowedBuffers>(wake_up_);
}

Header Session::HeaderOf(MessageKind kind) const {
  return {.kind = kind, .worker = worker_, .world_size = workers_};
}

// What does not go is tried again at the next step.
bool Session::SendControl(RouterLink& link) {
  if (refusal_due_) {
    Message refusal = Compose(HeaderOf(MessageKind::kRefusal), *refusal_due_);
    if (!link.Send(refusal)) return false;
    refusal_due_.reset();
  }
  if (!welcome_due_) return true;
  Header header = HeaderOf(MessageKind::kWelcome);
  header.round = *welcome_due_;
  Message welcome{.peer = worker_, .header = Encode(header)};
  if (!link.Send(welcome)) return false;
  welcome_due_.reset();
  return true;
}

// libzmq holds only so many messages with tensor bytes for a rank: what waits here goes by
// priority, and what libzmq holds is beyond it.
void Session::Send(RouterLink& link) {
  if (!SendControl(link)) return;
  for (; !answers_.empty(); answers_.Pop()) {
    PendingRequest* const pending = Find(answers_.top());
    if (!pending) continue;
    const bool has_room = pending->IsReceipt() || borrowed_->HasRoom(ahead_of_link_);
    if (!has_room || !SendAnswer(*pending, link)) return;
  }
}

// The answer stays pending until it is acknowledged: this message may be lost with the connection.
bool Session::SendAnswer(PendingRequest& pending, RouterLink& link) {
  Header header = pending.header;
  header.kind = MessageKind::kAnswer;
  Message message{.peer = worker_};
  if (pending.refusal.ok()) {
    message.header = Encode(header);
    message.body = Share(pending.body, borrowed_);
  } else {
    header.kind = MessageKind::kRefusal;
    message = Compose(header, pending.refusal);
  }
  if (!link.Send(message)) return false;
  pending.queued = false;
  pending.sent = true;
  return true;
}

}  // namespace engine::zmq_ps
