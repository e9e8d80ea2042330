#include "server_loop.h"

#include <algorithm>
#include <utility>

#include "describe.h"
#include "thread_setup.h"

namespace engine::zmq_ps {
namespace {

constexpr int kIdleMs = 500;
constexpr int kBusyMs = 20;
constexpr int kMaxReceivesPerStep = 64;
constexpr size_t kMaxControl = 1024;
constexpr size_t kMaxRounds = 1 << 20;
// What may be under way to one worker: this many answers, or this many slices' bytes.
constexpr size_t kWindowCount = 64;
constexpr size_t kWindowSlices = 8;
// Less is folded by the loop itself: handing it over would take longer.
constexpr size_t kFoldHereBytes = 32 << 10;
constexpr auto kComplaintInterval = std::chrono::seconds(1);

SocketSettings SocketSettingsOf(const ServerSettings& settings) {
  return {.max_message_bytes =
              static_cast<int64_t>(std::max<uint64_t>(settings.slice_bytes, kMaxHeaderBytes)),
          .buffer_bytes = settings.buffer_bytes};
}

std::span<const uint8_t> BytesOf(const ::zmq::message_t& message) {
  return {static_cast<const uint8_t*>(message.data()), message.size()};
}

}  // namespace

ServerLoop::ServerLoop(const ServerSettings& settings, ::zmq::context_t& context)
    : settings_(settings),
      window_bytes_(kWindowSlices * settings.slice_bytes),
      workers_(settings.workers) {
  auto link =
      std::make_unique<RouterLink>(context, settings.workers, settings.keys,
                                   2 * static_cast<int>(kWindowCount), SocketSettingsOf(settings));
  monitor_ = std::make_unique<Monitor>(context, link->raw(), "server");
  endpoint_ = link->Bind(settings.endpoint);
  socket_ = link.get();
  link_ = settings.wrap ? settings.wrap(std::move(link)) : std::move(link);
  pool_ = std::make_unique<ReducePool>(settings.reduce_threads, [this](ReduceTask task) {
    const std::lock_guard lock(mutex_);
    orders_.folded.push_back(std::move(task));
    wake_up_.Signal();
  });
}

ServerTraffic ServerLoop::traffic() const noexcept {
  return {payload_in_, payload_out_, frames_in_, frames_out_, repeated_};
}

void ServerLoop::Fail(const Status& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (orders_.failure.ok()) orders_.failure = reason;
  wake_up_.Signal();
}

void ServerLoop::Stop(int64_t drain_ms) noexcept {
  const std::lock_guard lock(mutex_);
  orders_.stop = true;
  orders_.drain_ms = drain_ms;
  wake_up_.Signal();
}

void ServerLoop::Run() noexcept {
  PrepareThread("zmq_ps_server");
  try {
    while (!stop_at_ || (Clock::now() < *stop_at_ && !Drained())) {
      Step(rounds_.empty() && !stop_at_ ? kIdleMs : kBusyMs);
    }
  } catch (const std::exception& error) {
    if (settings_.log) settings_.log(std::string("the server stops: ") + error.what());
  }
  link_.reset();
  monitor_.reset();
}

bool ServerLoop::Drained() const noexcept {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.left || (worker.pending.empty() && worker.control.empty());
  });
}

void ServerLoop::Step(int timeout_ms) {
  zmq_pollitem_t items[] = {{link_->socket(), 0, ZMQ_POLLIN, 0},
                            {monitor_->socket(), 0, ZMQ_POLLIN, 0},
                            {nullptr, wake_up_.descriptor(), ZMQ_POLLIN, 0}};
  zmq_poll(items, std::size(items), timeout_ms);
  if (items[2].revents) wake_up_.Clear();
  TakeOrders();
  HandleEvents();
  ReceiveAll();
  const Clock::time_point now = Clock::now();
  if (now >= next_look_) {
    next_look_ = now + std::chrono::milliseconds(kBusyMs);
    LookAtClock(now);
  }
  SendAll();
}

void ServerLoop::TakeOrders() {
  Orders orders;
  {
    const std::lock_guard lock(mutex_);
    orders.failure = orders_.failure;
    orders.stop = orders_.stop;
    orders.drain_ms = orders_.drain_ms;
    orders.folded.swap(orders_.folded);
  }
  for (ReduceTask& task : orders.folded) AfterFold(std::move(task));
  if (failure_.ok() && !orders.failure.ok()) {
    failure_ = orders.failure;
    RefuseOpenRounds(failure_);
  }
  if (orders.stop && !stop_at_) {
    stop_at_ = DeadlineIn(orders.drain_ms);
    if (failure_.ok()) {
      failure_ = Status::Error(StatusCode::kPeerLost, "the parameter server was stopped");
    }
    RefuseOpenRounds(failure_);
  }
}

void ServerLoop::HandleEvents() {
  ConnectionEvent event;
  while (monitor_->Next(&event)) {
    if (event.kind == ConnectionEvent::Kind::kRefused) {
      Complain("a connection was refused: it has no key of this run, or does not speak ZMTP");
    }
    bool known = event.kind != ConnectionEvent::Kind::kDown;
    for (Worker& worker : workers_) {
      if (event.kind == ConnectionEvent::Kind::kAccepted && worker.closed == event.descriptor) {
        worker.closed = -1;  // the number is in use again
      }
      if (event.kind != ConnectionEvent::Kind::kDown || worker.descriptor != event.descriptor) {
        continue;
      }
      known = true;
      worker.closed = std::exchange(worker.descriptor, -1);
      worker.down_since = Clock::now();
    }
    if (!known) Complain("a connection that no worker used was closed");
  }
}

void ServerLoop::ReceiveAll() {
  Message message;
  for (int i = 0; i < kMaxReceivesPerStep && link_->Receive(&message); ++i) Handle(message);
  if (socket_->TakeStrangers() > 0) Complain("a message that is not from a worker was dropped");
}

void ServerLoop::Handle(Message& message) {
  Header header;
  const char* const objection = Decode(BytesOf(message.header), &header);
  if (objection || header.worker != message.peer) {
    return Complain(objection ? objection : "a message in the name of another worker was dropped");
  }
  Worker& worker = workers_[message.peer];
  if (message.descriptor >= 0 && message.descriptor != worker.closed) {
    worker.down_since.reset();
    worker.descriptor = message.descriptor;
  }
  frames_in_ += message.header.size() + message.body.size();
  payload_in_ += message.body.size();
  switch (header.kind) {
    case MessageKind::kHello:
      worker.control.push_back(
          {.kind = MessageKind::kWelcome, .worker = message.peer, .world_size = settings_.workers});
      break;
    case MessageKind::kPush:
      return HandlePush(header, message.body);
    case MessageKind::kAck:
      return HandleAck(header);
    case MessageKind::kProbe:
      return HandleProbe(header);
    case MessageKind::kLeave:
      return Leave(message.peer, header.status);
    case MessageKind::kWelcome:
    case MessageKind::kAnswer:
    case MessageKind::kMissing:
    case MessageKind::kRefusal:
      return Complain("a message that only servers send was dropped");
  }
}

void ServerLoop::HandlePush(const Header& header, ::zmq::message_t& body) {
  Worker& worker = workers_[header.worker];
  const size_t expected = Contributes(header.spec, header.worker) ? header.spec.bytes() : 0;
  if (body.size() != expected || header.spec.bytes() > settings_.slice_bytes) {
    return Complain("a push whose header and data disagree was dropped");
  }
  switch (worker.seen.Check(header.request)) {
    case RequestWindow::Verdict::kSeen:
      return HandleRepeated(worker, header.request);
    case RequestWindow::Verdict::kTooFar:
      return Complain("a push with a request number out of range was dropped");
    case RequestWindow::Verdict::kNew:
      break;
  }
  Round* const round = FindOrOpen(header);
  if (!round) return Complain("too many transfers at once: a push was dropped");
  const Status agrees = round->Check(header);
  worker.seen.Mark(header.request);
  if (round->HasArrived(header.worker)) return Refuse(*round, agrees);
  worker.pending[header.request] = {.round = round, .heard = Clock::now()};
  if (agrees.ok()) {
    round->Arrive(header, std::move(body));
  } else {
    round->Arrive(header, {});
    Refuse(*round, agrees);
  }
  if (round->state() != Round::State::kOpen) return QueueAnswer(header.worker, header.request);
  if (!failure_.ok()) return Refuse(*round, failure_);
  if (const auto hopeless = Hopeless(*round)) return Refuse(*round, *hopeless);
  Advance(*round);
}

void ServerLoop::HandleRepeated(Worker& worker, uint64_t request) {
  ++repeated_;
  const auto found = worker.pending.find(request);
  if (found == worker.pending.end() || found->second.round->state() == Round::State::kOpen) return;
  const auto index = static_cast<uint32_t>(&worker - workers_.data());
  QueueAnswer(index, request);
}

void ServerLoop::HandleAck(const Header& header) {
  Worker& worker = workers_[header.worker];
  for (const uint64_t request : header.requests) {
    const auto found = worker.pending.find(request);
    if (found == worker.pending.end()) continue;
    Pending& pending = found->second;
    if (pending.round->state() == Round::State::kOpen) continue;  // of nothing that was answered
    if (pending.sent) {
      worker.window_bytes -= pending.bytes;
      --worker.window_count;
    }
    Round& round = *pending.round;
    worker.pending.erase(found);
    Settle(round, header.worker);
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
    if (found->second.round->state() != Round::State::kOpen) QueueAnswer(header.worker, request);
  }
  if (!missing.requests.empty() && worker.control.size() < kMaxControl) {
    worker.control.push_back(std::move(missing));
  }
}

Round* ServerLoop::FindOrOpen(const Header& push) {
  const RoundId id{push.key, push.round, push.slice};
  const auto found = rounds_.find(id);
  if (found != rounds_.end()) return found->second.get();
  if (rounds_.size() >= kMaxRounds) return nullptr;
  return rounds_.emplace(id, std::make_unique<Round>(id, push, settings_.workers))
      .first->second.get();
}

void ServerLoop::Advance(Round& round) {
  ReduceTask task;
  if (round.Advance(&task)) return Fold(round, std::move(task));
  if (round.state() == Round::State::kComplete) QueueAnswers(round);
}

void ServerLoop::Fold(Round& round, ReduceTask task) {
  const bool moves_only =
      task.accumulator.size() == 0 && task.inputs.size() == 1 && task.kernels->in_place;
  if (!moves_only && task.bytes() > kFoldHereBytes) {
    pool_->Submit(pool_->Choose(), std::move(task));
    return;
  }
  zmq_ps::Run(task);
  round.Folded(std::move(task));
  Advance(round);
}

void ServerLoop::AfterFold(ReduceTask task) {
  Round& round = *static_cast<Round*>(task.context);
  round.Folded(std::move(task));
  if (round.state() == Round::State::kOpen) return Advance(round);
  if (round.IsSettled()) rounds_.erase(RoundId(round.id()));
}

void ServerLoop::Refuse(Round& round, const Status& reason) {
  if (round.state() != Round::State::kOpen) return;
  round.Refuse(reason);
  QueueAnswers(round);
}

void ServerLoop::RefuseOpenRounds(const Status& reason) {
  std::vector<Round*> open;
  for (const auto& [id, round] : rounds_) {
    if (round->state() == Round::State::kOpen) open.push_back(round.get());
  }
  for (Round* round : open) Refuse(*round, reason);
}

std::optional<Status> ServerLoop::Hopeless(const Round& round) const {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].left && !round.HasArrived(i)) return *workers_[i].left;
  }
  return std::nullopt;
}

void ServerLoop::Leave(uint32_t index, const Status& reason) {
  Worker& worker = workers_[index];
  if (worker.left) return;
  worker.left = reason;
  worker.answers.Clear();
  worker.control.clear();
  worker.pending.clear();
  std::vector<Round*> all;
  for (const auto& [id, round] : rounds_) all.push_back(round.get());
  for (Round* round : all) {
    if (!round->HasArrived(index)) Refuse(*round, reason);
    Settle(*round, index);
  }
}

// Erases the round when nobody wants it any more.
void ServerLoop::Settle(Round& round, uint32_t worker) {
  round.Settle(worker);
  if (round.state() == Round::State::kOpen || round.busy() || !round.IsSettled()) return;
  rounds_.erase(RoundId(round.id()));
}

void ServerLoop::QueueAnswers(Round& round) {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].left) round.Settle(i);
    if (!workers_[i].left && round.HasArrived(i)) QueueAnswer(i, round.RequestOf(i));
  }
}

void ServerLoop::QueueAnswer(uint32_t index, uint64_t request) {
  Worker& worker = workers_[index];
  const auto found = worker.pending.find(request);
  if (found == worker.pending.end() || found->second.queued) return;
  found->second.queued = true;
  const Round& round = *found->second.round;
  const bool refused = round.state() == Round::State::kRefused;
  // What was lost goes before what waits for room in the window: the lost ones are what fills it.
  const bool first = refused || found->second.sent;
  worker.answers.Push(first ? INT32_MAX : round.priority(), request);
}

void ServerLoop::SendAll() {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].left) SendTo(i);
  }
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
      if (!pending.sent && !fits) return;
      if (!SendAnswer(index, request, pending)) return;
    }
    worker.answers.Pop();
  }
}

bool ServerLoop::SendAnswer(uint32_t index, uint64_t request, Pending& pending) {
  Round& round = *pending.round;
  Message message{.peer = index};
  Header header{.kind = MessageKind::kAnswer,
                .worker = index,
                .world_size = settings_.workers,
                .request = request};
  if (round.state() == Round::State::kRefused) {
    header.kind = MessageKind::kRefusal;
    header.status = round.refusal();
  } else {
    header.key = round.id().key;
    header.round = round.id().round;
    header.slice = round.id().slice;
    header.spec = round.spec();
    if (Receives(round.spec(), index)) message.body.copy(round.result());  // shares the bytes
  }
  Encode(header, &encoded_);
  message.header.rebuild(encoded_.data(), encoded_.size());
  const size_t bytes = encoded_.size() + message.body.size();
  if (!SendMessage(message)) return false;
  Worker& worker = workers_[index];
  pending.queued = false;
  pending.heard = Clock::now();
  if (pending.sent) return true;
  pending.sent = true;
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

void ServerLoop::LookAtClock(Clock::time_point now) {
  std::vector<Round*> late;
  for (const auto& [id, round] : rounds_) {
    if (round->state() == Round::State::kOpen && now >= round->deadline()) {
      late.push_back(round.get());
    }
  }
  for (Round* round : late) {
    const std::vector<uint32_t> missing = round->Missing();
    if (missing.empty()) continue;  // being added up
    Refuse(*round, Status::Error(StatusCode::kTimeout, "%s has not submitted %s in time",
                                 ListRanks(missing).c_str(),
                                 Describe(round->spec(), round->sequence()).c_str())
                       .WithRank(static_cast<int32_t>(missing.front())));
  }
  // Who has gone while the server is stopping does not come back for its answers.
  const auto patience = std::chrono::milliseconds(stop_at_ ? 0 : settings_.lost_after_ms);
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.left) continue;
    if (worker.down_since && now >= *worker.down_since + patience) {
      Leave(i, Status::Error(StatusCode::kPeerLost, "rank %u closed its connection", i)
                   .WithRank(static_cast<int32_t>(i)));
    } else {
      AskAbout(worker, now);
    }
  }
  FlushComplaints(now);
}

void ServerLoop::AskAbout(Worker& worker, Clock::time_point now) {
  if (worker.window_count == 0) return;
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

// One line a second at most, whatever a stranger sends.
void ServerLoop::Complain(const char* what) {
  complaint_ = what;
  ++complaints_;
  FlushComplaints(Clock::now());
}

void ServerLoop::FlushComplaints(Clock::time_point now) {
  if (!complaint_ || now < next_complaint_) return;
  next_complaint_ = now + kComplaintInterval;
  std::string line = complaint_;
  if (complaints_ > 1) line += " (" + std::to_string(complaints_) + " such events)";
  complaint_ = nullptr;
  complaints_ = 0;
  if (settings_.log) settings_.log(line);
}

}  // namespace engine::zmq_ps
