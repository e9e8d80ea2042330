#include "server_loop.h"

#include <algorithm>
#include <utility>

#include "describe.h"
#include "thread_setup.h"

namespace engine::zmq_ps {
namespace {

constexpr int kIdleMs = 500;
constexpr int kBusyMs = 20;
constexpr int kMaxReceivesPerStep = 4;
constexpr size_t kMaxPending = 1 << 18;  // of one worker
constexpr size_t kWindowSlices = 8;
constexpr auto kComplaintInterval = std::chrono::seconds(1);

SocketSettings SocketSettingsOf(const ServerSettings& settings) {
  return {.max_message_bytes =
              static_cast<int64_t>(std::max<uint64_t>(settings.slice_bytes, kMaxHeaderBytes)),
          .buffer_bytes = settings.buffer_bytes,
          .heartbeat = settings.heartbeat};
}

std::span<const uint8_t> BytesOf(const ::zmq::message_t& message) {
  return {static_cast<const uint8_t*>(message.data()), message.size()};
}

}  // namespace

ServerLoop::ServerLoop(const ServerSettings& settings, ::zmq::context_t& context)
    : settings_(settings), window_bytes_(kWindowSlices * settings.slice_bytes) {
  for (uint32_t i = 0; i < settings.workers; ++i) workers_.emplace_back(settings, wake_up_);
  auto link =
      std::make_unique<RouterLink>(context, settings.workers, settings.keys,
                                   2 * static_cast<int>(kWindowCount), SocketSettingsOf(settings));
  monitor_ = std::make_unique<Monitor>(context, link->raw(), "server");
  endpoint_ = link->Bind(settings.endpoint);
  socket_ = link.get();
  link_ = settings.wrap ? settings.wrap(std::move(link)) : std::move(link);
  poll_.Add(wake_up_->descriptor());
  poll_.AddSocket(monitor_->socket());
  poll_.AddSocket(link_->socket());
  pool_ = std::make_unique<ReducePool>(settings.reduce_threads, [this](PoolTask task) {
    const std::lock_guard lock(mutex_);
    orders_.done.push_back(std::move(task));
    wake_up_->Signal();
  });
}

ServerTraffic ServerLoop::traffic() const noexcept {
  return {payload_in_, payload_out_, frames_in_, frames_out_, repeated_};
}

void ServerLoop::Fail(const Status& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (orders_.failure.ok()) orders_.failure = reason;
  wake_up_->Signal();
  ended_.notify_all();
}

void ServerLoop::Stop(int64_t drain_ms) noexcept {
  const std::lock_guard lock(mutex_);
  orders_.stop = true;
  orders_.drain_ms = drain_ms;
  wake_up_->Signal();
  ended_.notify_all();
}

void ServerLoop::Serve(Optimizer& optimizer) noexcept {
  const std::lock_guard lock(mutex_);
  orders_.optimizer = &optimizer;
  wake_up_->Signal();
}

Status ServerLoop::WaitForEnd() noexcept {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return all_left_ || over_ || orders_.stop || !orders_.failure.ok(); });
  if (!orders_.failure.ok()) return orders_.failure;
  if (all_left_ || orders_.stop) return {};
  return Status::Error(StatusCode::kInternal, "the thread of the parameter server has ended");
}

void ServerLoop::Run() noexcept {
  PrepareThread("zmq_ps_server");
  try {
    while (!stop_at_ || (Clock::now() < *stop_at_ && !Drained())) {
      Step(IsIdle() ? kIdleMs : kBusyMs);
    }
  } catch (const std::exception& error) {
    if (settings_.log) settings_.log(std::string("the server stops: ") + error.what());
  }
  link_.reset();
  monitor_.reset();
  const std::lock_guard lock(mutex_);
  over_ = true;
  ended_.notify_all();
}

// Whether nothing is due by the clock.
bool ServerLoop::IsIdle() const noexcept {
  if (stop_at_ || !rounds_.empty()) return false;
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.left || (worker.pending.empty() && !worker.down_since);
  });
}

bool ServerLoop::Drained() const noexcept {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.left || (worker.pending.empty() && worker.control.empty());
  });
}

void ServerLoop::Step(int timeout_ms) {
  if (!(EventsOf(link_->socket()) & ZMQ_POLLIN)) poll_.Wait(timeout_ms);
  wake_up_->Clear();
  TakeOrders();
  HandleEvents();  // before messages, which may come by a descriptor that was closed and opened
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
    orders.optimizer = orders_.optimizer;
    orders.done.swap(orders_.done);
  }
  if (orders.optimizer && !table_ && settings_.update) StartTable(*orders.optimizer);
  for (PoolTask& task : orders.done) AfterTask(std::move(task));
  if (table_) DriveTable();
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
  frames_in_ += message.header.size() + message.body.size() + message.rows.size();
  payload_in_ += message.body.size();
  if (!Knows(worker, header)) return;
  switch (header.kind) {
    case MessageKind::kHello:
      return Welcome(message.peer);
    case MessageKind::kPush:
      return HandlePush(header, message);
    case MessageKind::kAck:
      return HandleAck(header);
    case MessageKind::kProbe:
      return HandleProbe(header);
    case MessageKind::kLeave:
      return Leave(message.peer, header.status, false);
    case MessageKind::kWelcome:
    case MessageKind::kAnswer:
    case MessageKind::kMissing:
    case MessageKind::kRefusal:
      return Complain("a message that only servers send was dropped");
  }
}

// Whether a message is to be heard: not of a former life of its rank, and not of one that others
// were told is lost.
bool ServerLoop::Knows(Worker& worker, const Header& header) {
  if (header.incarnation < worker.incarnation) return false;
  if (header.incarnation > worker.incarnation) Renew(header.worker, header.incarnation);
  if (!worker.left) return true;
  if (worker.given_up && worker.control.empty()) {
    Header refusal{.kind = MessageKind::kRefusal,
                   .worker = header.worker,
                   .world_size = settings_.workers,
                   .status = worker.left->WithContext("rank %u was given up", header.worker)};
    worker.control.push_back(std::move(refusal));
  }
  return false;
}

// Another process has the rank now.
void ServerLoop::Renew(uint32_t index, uint32_t incarnation) {
  Worker& worker = workers_[index];
  worker.incarnation = incarnation;
  const auto rank = static_cast<int32_t>(index);
  if (!worker.left) {
    Leave(index,
          Status::Error(StatusCode::kPeerLost, "rank %u was started again", index).WithRank(rank),
          true);
  }
  if (!settings_.allows_losses()) return;  // it is told that it was given up
  worker.left.reset();
  worker.given_up = false;
  worker.seen = {};
  worker.control.clear();
  worker.window_bytes = 0;
  worker.window_count = 0;
  worker.lent = std::make_shared<Lent>(wake_up_);
  if (table_) table_->Join(index);
  if (settings_.log) settings_.log("rank " + std::to_string(index) + " is back, as a new process");
  const std::lock_guard lock(mutex_);
  all_left_ = false;
}

void ServerLoop::Welcome(uint32_t index) {
  workers_[index].control.push_back({.kind = MessageKind::kWelcome,
                                     .worker = index,
                                     .world_size = settings_.workers,
                                     .round = last_keyless_round_});
}

void ServerLoop::HandlePush(const Header& header, Message& message) {
  Worker& worker = workers_[header.worker];
  const size_t expected = Contributes(header.spec, header.worker) ? header.spec.bytes() : 0;
  const bool fits = IsServed(header.spec.operation)
                        ? FitsServed(header, message)
                        : message.body.size() == expected && message.rows.size() == 0;
  if (!fits || header.spec.bytes() > settings_.slice_bytes) {
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
  if (worker.pending.size() >= kMaxPending) {
    return Complain("too many requests at once: a push was dropped");
  }
  if (IsServed(header.spec.operation)) return HandleServed(header, message);
  HandleCollective(header, message.body);
}

void ServerLoop::Leave(uint32_t index, const Status& reason, bool given_up) {
  Worker& worker = workers_[index];
  if (worker.left) return;
  // Orderly ends are no news, but others are told so if they still need the rank.
  const bool orderly = reason.code() == StatusCode::kAborted;
  worker.left = orderly ? Status::Error(StatusCode::kPeerLost, "%s", reason.message())
                              .WithRank(static_cast<int32_t>(index))
                        : reason;
  worker.given_up = given_up;
  worker.answers.Clear();
  worker.control.clear();
  worker.pending.clear();
  // Who says why it leaves says so to its launcher too.
  if (settings_.allows_losses() && given_up && settings_.log && !stop_at_) {
    settings_.log(std::string("going on without rank ")
                      .append(std::to_string(index))
                      .append(": ")
                      .append(reason.message()));
  }
  std::vector<Round*> all;
  for (const auto& [id, round] : rounds_) all.push_back(round.get());
  for (Round* round : all) {
    const bool open = round->state() == Round::State::kOpen;
    if (const auto hopeless = open ? Hopeless(*round) : std::nullopt) Refuse(*round, *hopeless);
    if (open) Advance(*round);
    Settle(*round, index);
  }
  if (table_) {
    table_->Lose(index);
    DriveTable();
  }
  RefuseHopelessPulls();
  const bool all_left = std::all_of(workers_.begin(), workers_.end(),
                                    [](const Worker& other) { return other.left.has_value(); });
  const std::lock_guard lock(mutex_);
  all_left_ = all_left;
  if (all_left) ended_.notify_all();
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
  RefuseLatePulls(now);
  // Who has gone while the server is stopping does not come back for its answers.
  const auto patience = std::chrono::milliseconds(stop_at_ ? 0 : settings_.lost_after_ms);
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.left) continue;
    if (worker.down_since && now >= *worker.down_since + patience) {
      Leave(i,
            Status::Error(StatusCode::kPeerLost, "rank %u closed its connection", i)
                .WithRank(static_cast<int32_t>(i)),
            true);
    } else {
      AskAbout(worker, now);
    }
  }
  FlushComplaints(now);
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
