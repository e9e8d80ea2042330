// One thread does everything but arithmetic: it has the sockets, the sessions and what becomes of
// requests, so none of these needs a lock. Other threads leave orders (Fail, Stop, Serve, finished
// arithmetic) under mutex_ and wake it.
//
//   Step:  orders -> events of connections -> messages -> lost ranks, every 20 ms -> answers
//
// Orders go first, because finished arithmetic makes answers; events go before messages, because a
// descriptor that was closed may be that of a new connection in the next message. A step receives a
// few messages only, so that urgent answers do not wait behind a long queue of pushes.
//
// A rank is in one of three states: it takes part; it has left, with a message or because it was
// without a connection for too long (Session::left); or a new process has its place. Everything
// that waits for a rank looks at the first two, and only bounded and async know the third.
#include "server.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "kit/thread.h"
#include "wire.h"

namespace engine::zmq_ps {

constexpr int kIdleMs = 500;
constexpr int kBusyMs = 20;
constexpr int kMaxQueuedMessages = 128;  // of ZeroMQ, for each rank
constexpr auto kLogInterval = std::chrono::seconds(1);

Server::Server(ServerSettings settings)
    : settings_(std::move(settings)),
      context_(settings_.connection.io_threads),
      authenticator_(context_, settings_.worker_keys, settings_.renewed_keys) {
  const auto workers = static_cast<uint32_t>(settings_.worker_keys.size());
  for (uint32_t i = 0; i < workers; ++i) {
    sessions_.emplace_back(i, workers, settings_.connection.flow, wake_up_);
  }
  link_ = std::make_unique<RouterLink>(context_, workers, settings_.secret_key, kMaxQueuedMessages,
                                       settings_.connection);
  endpoint_ = link_->Bind(settings_.endpoint);
  poll_.Add(wake_up_->descriptor());
  poll_.AddSocket(link_->monitor().socket());
  poll_.AddSocket(link_->socket());
  offload_ = std::make_unique<Offload>(settings_.reduce_threads, [this](Offload::Function done) {
    const std::lock_guard lock(mutex_);
    orders_.done.push_back(std::move(done));
    wake_up_->Signal();
  });
  collectives_ = std::make_unique<Collectives>(settings_.allows_losses(), sessions_, *offload_);
  parameters_ = std::make_unique<ParameterStore>(settings_.update, sessions_, *offload_);
  thread_ = kit::StartThread("zmq_ps_server", [this] { Run(); });
}

Result<std::unique_ptr<Server>> Server::Start(ServerSettings settings) noexcept {
  if (settings.secret_key.empty() && !IsLoopback(settings.endpoint)) {
    return Status::Error(StatusCode::kConfig,
                         "a parameter server at %s would talk in plain text with other hosts: give "
                         "it keys, or an address of loopback",
                         settings.endpoint.c_str());
  }
  const std::string endpoint = settings.endpoint;
  try {
    return std::unique_ptr<Server>(new Server(std::move(settings)));
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "cannot start a parameter server at %s: %s", endpoint.c_str(),
                         error.what());
  }
}

Server::~Server() {
  Stop(0);
}

void Server::Fail(const Status& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (orders_.failure.ok()) orders_.failure = reason;
  wake_up_->Signal();
  changed_.notify_all();
}

void Server::Stop(int64_t drain_ms) noexcept {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    orders_.stop_after_ms = drain_ms;
    wake_up_->Signal();
    changed_.notify_all();
  }
  thread_.join();
  offload_.reset();  // ends what it runs, which uses the rest
}

void Server::Serve(Optimizer& optimizer) noexcept {
  const std::lock_guard lock(mutex_);
  orders_.optimizer = &optimizer;
  wake_up_->Signal();
}

Status Server::WaitForEnd() noexcept {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] {
    return all_left_ || ended_ || orders_.stop_after_ms || !orders_.failure.ok();
  };
  changed_.wait(lock, is_over);
  if (!orders_.failure.ok()) return orders_.failure;
  if (all_left_ || orders_.stop_after_ms) return {};
  return Status::Error(StatusCode::kInternal, "the thread of the parameter server has ended");
}

void Server::Run() noexcept {
  try {
    while (!stop_at_ || (Clock::now() < *stop_at_ && !IsDrained())) {
      Step(IsIdle() ? kIdleMs : kBusyMs);
    }
  } catch (const std::exception& error) {
    Log(std::string("the parameter server stops: ") + error.what());
  }
  link_.reset();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// Whether nothing is due by the clock.
bool Server::IsIdle() const noexcept {
  return !stop_at_ && std::all_of(sessions_.begin(), sessions_.end(), [](const Session& session) {
    return session.left() || session.has_connection();
  });
}

// Whether every rank has acknowledged what it was sent.
bool Server::IsDrained() const noexcept {
  return std::none_of(sessions_.begin(), sessions_.end(), [](const Session& session) {
    return !session.left() && session.has_pending();
  });
}

void Server::Step(int timeout_ms) {
  if (!(EventsOf(link_->socket()) & ZMQ_POLLIN)) poll_.Wait(timeout_ms);
  wake_up_->Clear();
  TakeOrders();
  HandleEvents();  // before messages, which may come by a descriptor that was closed and opened
  ReceiveAll();
  const Clock::time_point now = Clock::now();
  if (now >= next_check_) {
    next_check_ = now + std::chrono::milliseconds(kBusyMs);
    CheckTime(now);
  }
  for (Session& session : sessions_) session.Send(*link_);
}

// A copy of what was ordered, so that nothing runs under the mutex. `failure` and `stop` stay set:
// WaitForEnd looks at them.
void Server::TakeOrders() {
  Orders orders;
  {
    const std::lock_guard lock(mutex_);
    orders = {orders_.failure, orders_.stop_after_ms, orders_.optimizer,
              std::exchange(orders_.done, {})};
  }
  if (orders.optimizer && settings_.update && !parameters_->started()) {
    parameters_->Start(*orders.optimizer);
  }
  for (Offload::Function& done : orders.done) done();
  parameters_->Advance();
  if (!orders.failure.ok()) RefuseAll(orders.failure);
  if (orders.stop_after_ms && !stop_at_) {
    stop_at_ = kit::DeadlineIn(*orders.stop_after_ms);
    RefuseAll(Status::Error(StatusCode::kPeerLost, "the parameter server was stopped"));
  }
}

// The first reason stays: what comes later is a consequence of it. Rounds and the table do not
// learn of it: what they still make of these requests, the sessions drop.
void Server::RefuseAll(const Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  for (Session& session : sessions_) {
    session.ForEachOpen(
        [&](const PendingRequest& pending) { session.Answer(pending.header.request, reason, {}); });
  }
}

void Server::HandleEvents() {
  ConnectionEvent event;
  const Clock::time_point now = Clock::now();
  while (link_->monitor().Next(&event)) {
    bool known = false;
    for (Session& session : sessions_) known = session.HandleEvent(event, now) || known;
    if (!known) ++unproven_;
  }
}

void Server::ReceiveAll() {
  Message message;
  for (int i = 0; i < kMaxReceivesPerStep && link_->Receive(&message); ++i) Handle(message);
}

// What a rank sends and this server cannot take it is told: it would wait for an answer otherwise.
void Server::Handle(Message& message) {
  Session& session = sessions_[message.peer];
  Header header;
  const char* objection = Decode(message.header, &header);
  if (!objection && header.worker != message.peer) objection = "it is in the name of another rank";
  if (objection) {
    return session.Refuse(
        Blame(message.peer, "rank %u sent a broken message: %s", message.peer, objection));
  }
  session.Heard(message.descriptor);
  if (!Admit(session, header)) return;
  switch (header.kind) {
    case MessageKind::kHello:
      return session.Welcome(collectives_->last_keyless_round(), /*again=*/true);
    case MessageKind::kProbe:
      return HandleProbe(header);
    case MessageKind::kPush:
      return HandlePush(header, message);
    case MessageKind::kAck:
      return session.Acknowledge(message.body);
    case MessageKind::kLeave:
      return Leave(message.peer, StatusOf(header, message.body), false);
    default:
      return session.Refuse(Blame(message.peer, "rank %u sent what servers send", message.peer));
  }
}

// Whether a message counts: not of a former process of its rank, and not of a rank that was
// reported as lost.
bool Server::Admit(Session& session, const Header& header) {
  if (header.incarnation < session.incarnation()) return false;
  if (header.incarnation > session.incarnation()) Renew(header.worker, header.incarnation);
  if (!session.left()) return true;
  session.RefuseExpired();
  return false;
}

// Another process has the rank now. Where losses are not allowed it has expired.
void Server::Renew(uint32_t index, uint32_t incarnation) {
  Session& session = sessions_[index];
  if (!session.left()) {
    const auto rank = static_cast<int32_t>(index);
    Leave(index,
          Status::Error(StatusCode::kPeerLost, "rank %u was started again", index).WithRank(rank),
          true);
  }
  if (!settings_.allows_losses()) return;
  session.Renew(incarnation);
  parameters_->RankJoined(index);
  Log("rank " + std::to_string(index) + " is back, as a new process");
  const std::lock_guard lock(mutex_);
  all_left_ = false;
}

void Server::HandlePush(const Header& header, Message& message) {
  Session& session = sessions_[header.worker];
  if (!session.IsNew(header.request)) return session.Repeat(header.request);
  PendingRequest& pending = session.Open(header);
  const Status refused = RefusalOf(header, message);
  if (!refused.ok()) return session.Answer(header.request, refused, {});
  if (IsServed(header.spec.operation)) return parameters_->Handle(pending, message);
  collectives_->Handle(header, std::move(message.body));
}

// Why a push is refused whatever it asks for; OK: it is not. Nothing of it is trusted: its frames
// must have the sizes that its header says, within slice_bytes. The table judges the body of what
// is about parameters.
Status Server::RefusalOf(const Header& header, const Message& message) const {
  ENGINE_RETURN_IF_ERROR(failure_);
  if (header.world_size != sessions_.size()) {
    return Blame(header.worker,
                 "rank %u counts %u ranks, but there are %zu: all ranks must belong to one run",
                 header.worker, header.world_size, sessions_.size());
  }
  const size_t expected = Contributes(header.spec, header.worker) ? header.spec.bytes() : 0;
  const auto rows = static_cast<size_t>(std::max(header.served.rows, 0));
  const bool fits = message.rows.size() == rows * sizeof(int32_t) &&
                    header.spec.bytes() <= settings_.connection.flow.slice_bytes &&
                    (IsServed(header.spec.operation) || message.body.size() == expected);
  if (fits) return {};
  return Blame(header.worker,
               "rank %u sent %s with more or less data than it says, or than slice_bytes",
               header.worker, Describe(header).c_str());
}

// A rank asks because nothing moves there. Who it waits for is named unless something moves there;
// then the rank asks again. An update that does not end is this server's.
void Server::HandleProbe(const Header& probe) {
  Session& session = sessions_[probe.worker];
  session.Welcome(collectives_->last_keyless_round(), /*again=*/false);
  const PendingRequest* const pending = session.Find(probe.request);
  if (!pending || pending->ready) return;  // it is on its way, or its answer is
  const Header request = pending->header;
  const bool served = IsServed(request.spec.operation);
  const auto missing = served ? parameters_->Missing(request) : collectives_->Missing(request);
  if (missing.empty() && !served) return;  // it is being reduced
  const Clock::time_point stalled = Clock::now() - std::chrono::milliseconds(probe.timeout_ms);
  const auto moved_at = [this](uint32_t rank) { return sessions_[rank].moved_at(); };
  const auto [behind, last] = std::ranges::minmax_element(missing, {}, moved_at);
  if (!missing.empty() && moved_at(*last) > stalled) return;
  const std::string whom = missing.empty() ? "an update of this server" : List("rank", missing);
  const Status late =
      Status::Error(StatusCode::kTimeout, "%s waits for %s: nothing has moved there for %lld ms",
                    Describe(request).c_str(), whom.c_str(),
                    static_cast<long long>(probe.timeout_ms))
          .WithRank(missing.empty() ? -1 : static_cast<int32_t>(*behind));
  if (served) return session.Answer(probe.request, late, {});
  collectives_->Refuse(request, late);
}

// An orderly end is an error only for others that still need the rank.
void Server::Leave(uint32_t index, const Status& reason, bool expired) {
  Session& session = sessions_[index];
  if (session.left()) return;
  const bool orderly = reason.code() == StatusCode::kAborted;
  session.Leave(orderly ? Status::Error(StatusCode::kPeerLost, "%s", reason.message())
                              .WithRank(static_cast<int32_t>(index))
                        : reason,
                expired);
  // A rank that gives a reason gives it to its launcher too.
  if (settings_.allows_losses() && expired && !stop_at_) {
    Log("going on without rank " + std::to_string(index) + ": " + reason.message());
  }
  collectives_->RankLeft(index);
  parameters_->RankLeft(index);
  const bool all_left = std::all_of(sessions_.begin(), sessions_.end(),
                                    [](const Session& other) { return other.left() != nullptr; });
  const std::lock_guard lock(mutex_);
  all_left_ = all_left;
  if (all_left) changed_.notify_all();
}

// A member that does not answer is noticed by ZeroMQ's heartbeats, which close its connection; what
// is left here is how long it may take to come back.
void Server::CheckTime(Clock::time_point now) {
  // Who has gone while the server is stopping does not come back for its answers.
  const int64_t lost_after_ms = stop_at_ ? 0 : settings_.connection.lost_after_ms;
  for (uint32_t i = 0; i < sessions_.size(); ++i) {
    if (sessions_[i].left() || !sessions_[i].IsDown(now, lost_after_ms)) continue;
    Leave(i,
          Status::Error(StatusCode::kPeerLost, "rank %u closed its connection", i)
              .WithRank(static_cast<int32_t>(i)),
          true);
  }
  if (unproven_ == 0 || now < next_log_) return;  // one line a second at most, whatever they do
  next_log_ = now + kLogInterval;
  Log("connections without a key of this run were refused or closed: " +
      std::to_string(std::exchange(unproven_, 0)));
}

void Server::Log(const std::string& line) const {
  if (settings_.log) settings_.log(line);
}

}  // namespace engine::zmq_ps
