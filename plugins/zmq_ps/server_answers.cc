// Answers, until they are acknowledged.
#include <utility>

#include "server_loop.h"

namespace engine::zmq_ps {
namespace {

constexpr size_t kMaxControl = 1024;

}  // namespace

bool ServerLoop::IsOpen(const Pending& pending) noexcept {
  return pending.round ? pending.round->state() == Round::State::kOpen : !pending.served->ready;
}

void ServerLoop::HandleRepeated(Worker& worker, uint64_t request) {
  ++repeated_;
  const auto found = worker.pending.find(request);
  if (found == worker.pending.end() || IsOpen(found->second)) return;
  const auto index = static_cast<uint32_t>(&worker - workers_.data());
  QueueAnswer(index, request);
}

void ServerLoop::HandleAck(const Header& header) {
  Worker& worker = workers_[header.worker];
  for (const uint64_t request : header.requests) {
    const auto found = worker.pending.find(request);
    if (found == worker.pending.end()) continue;
    Pending& pending = found->second;
    if (IsOpen(pending)) continue;  // of nothing that was answered
    if (pending.counted) {
      worker.window_bytes -= pending.bytes;
      --worker.window_count;
    }
    Round* const round = pending.round;
    worker.pending.erase(found);
    if (round) Settle(*round, header.worker);
  }
}

void ServerLoop::HandleProbe(const Header& header) {
  Worker& worker = workers_[header.worker];
  Header missing{
      .kind = MessageKind::kMissing, .worker = header.worker, .world_size = settings_.workers};
  for (const uint64_t request : header.requests) {
    if (worker.seen.Check(request) == RequestWindow::Verdict::kNew) {
      missing.requests.push_back(request);
      continue;
    }
    const auto found = worker.pending.find(request);
    if (found == worker.pending.end()) continue;
    if (!IsOpen(found->second)) QueueAnswer(header.worker, request);
  }
  if (!missing.requests.empty() && worker.control.size() < kMaxControl) {
    worker.control.push_back(std::move(missing));
  }
}

void ServerLoop::QueueAnswer(uint32_t index, uint64_t request) {
  Worker& worker = workers_[index];
  const auto found = worker.pending.find(request);
  if (found == worker.pending.end() || found->second.queued) return;
  found->second.queued = true;
  const Round* const round = found->second.round;
  const ServedReply* const served = found->second.served.get();
  const bool refused = round ? round->state() == Round::State::kRefused : !served->refusal.ok();
  // What was lost goes before what waits for room in the window: the lost ones are what fills it.
  const bool first = refused || found->second.sent || found->second.IsReceipt();
  const int32_t priority = round ? round->priority() : served->header.priority;
  worker.answers.Push(first ? INT32_MAX : priority, request);
}

void ServerLoop::SendAll() {
  for (uint32_t i = 0; i < workers_.size(); ++i) SendTo(i);
}

void ServerLoop::SendTo(uint32_t index) {
  Worker& worker = workers_[index];
  while (!worker.control.empty()) {
    Message message{.peer = index};
    Encode(worker.control.front(), &encoded_);
    message.header.rebuild(encoded_.data(), encoded_.size());
    if (!SendMessage(message)) return;
    worker.control.pop_front();
  }
  while (!worker.answers.empty()) {
    const uint64_t request = worker.answers.top();
    const auto found = worker.pending.find(request);
    if (found != worker.pending.end()) {
      Pending& pending = found->second;
      const bool fits = worker.window_count < kWindowCount && worker.window_bytes < window_bytes_;
      if (!pending.sent && !fits && !pending.IsReceipt()) return;
      const bool has_room = pending.IsReceipt() || worker.lent->HasRoom(worker.ahead.messages());
      if (!has_room) return worker.ahead.Full(Clock::now());
      if (!SendAnswer(index, request, pending)) return;
    }
    worker.answers.Pop();
  }
  worker.ahead.Drained();
}

// A message over the memory of `bytes`, which keeps it until libzmq has sent it.
::zmq::message_t ServerLoop::Share(Worker& worker, ::zmq::message_t& bytes) {
  if (bytes.size() == 0) return {};
  struct Lease {
    ::zmq::message_t bytes;
    std::shared_ptr<Lent> lent;
  };
  auto lease = std::make_unique<Lease>();
  lease->bytes.copy(bytes);
  lease->lent = worker.lent;
  const auto end = [](void*, void* hint) {
    const std::unique_ptr<Lease> ended(static_cast<Lease*>(hint));
    ended->lent->GiveBack();
  };
  ::zmq::message_t message(lease->bytes.data(), lease->bytes.size(), end, lease.get());
  lease.release()->lent->Lend();
  return message;
}

bool ServerLoop::SendAnswer(uint32_t index, uint64_t request, Pending& pending) {
  Message message{.peer = index};
  Header header{.kind = MessageKind::kAnswer};
  if (pending.served) {
    ServedReply& reply = *pending.served;
    header = reply.header;
    header.kind = MessageKind::kAnswer;
    header.status = reply.refusal;
    message.body = Share(workers_[index], reply.body);
  } else {
    Round& round = *pending.round;
    header.key = round.id().key;
    header.round = round.id().round;
    header.slice = round.id().slice;
    header.spec = round.spec();
    header.status = round.refusal();
    const bool wanted = header.status.ok() && Receives(round.spec(), index);
    if (wanted) message.body = Share(workers_[index], round.result());
  }
  header.worker = index;
  header.world_size = settings_.workers;
  header.request = request;
  if (!header.status.ok()) header.kind = MessageKind::kRefusal;
  Encode(header, &encoded_);
  message.header.rebuild(encoded_.data(), encoded_.size());
  const size_t bytes = encoded_.size() + message.body.size();
  Worker& worker = workers_[index];
  if (!SendMessage(message)) return false;
  worker.ahead.Sent(bytes);
  pending.queued = false;
  pending.heard = Clock::now();
  if (pending.sent) return true;
  pending.sent = true;
  if (pending.IsReceipt()) return true;
  pending.counted = true;
  pending.bytes = bytes;
  worker.window_bytes += bytes;
  ++worker.window_count;
  return true;
}

// Full and unreachable alike: it is tried again at the next step.
bool ServerLoop::SendMessage(Message& message) {
  const size_t body = message.body.size(), whole = message.header.size() + body;
  if (link_->Send(message) != SendResult::kSent) return false;
  payload_out_ += body;
  frames_out_ += whole;
  return true;
}

void ServerLoop::AskAbout(Worker& worker, Clock::time_point now) {
  const auto patience = std::chrono::milliseconds(settings_.resend_ms);
  Header probe{.kind = MessageKind::kProbe,
               .worker = static_cast<uint32_t>(&worker - workers_.data()),
               .world_size = settings_.workers};
  for (auto& [request, pending] : worker.pending) {
    if (!pending.sent || now < pending.heard + patience) continue;
    if (probe.requests.size() == kMaxRequestsPerHeader) break;
    pending.heard = now;
    probe.requests.push_back(request);
  }
  if (!probe.requests.empty() && worker.control.size() < kMaxControl) {
    worker.control.push_back(std::move(probe));
  }
}

}  // namespace engine::zmq_ps
