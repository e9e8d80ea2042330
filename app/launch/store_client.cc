// Any thread sends, through the outbox, as far as the socket takes it; the reader thread sends the
// rest. The reader thread alone receives and runs Dispatch with all below it. Nothing waits under
// send_mutex_. mutex_ guards what the threads share and is never held while a frame is sent or
// somebody else is called (abort_, on_stop_, a listener): each of these may call back.

#include "app/launch/store_client.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "app/launch/deadlines.h"
#include "app/launch/failure_log.h"
#include "app/launch/membership.h"

namespace engine::launch {
namespace {

constexpr size_t kMaxOutboxBytes = kMaxValueBytes;  // of a server that takes nothing

bool Plausible(const RunShape& shape) {
  constexpr int kMost = 1 << 20;
  return shape.world_size >= 1 && shape.world_size <= kMost && shape.servers >= 0 &&
         shape.servers <= kMost;
}

Status CheckSizes(std::string_view key, std::string_view value) {
  if (key.size() <= kMaxKeyBytes && value.size() <= kMaxValueBytes) return {};
  return Status::Error(StatusCode::kInvalidArgument,
                       "a store key of %zu bytes with a value of %zu; the limits are %u and %u",
                       key.size(), value.size(), kMaxKeyBytes, kMaxValueBytes);
}

Message HelloOf(const StoreClient::Identity& identity) {
  return {.kind = MessageKind::kHello,
          .id = kProtocolVersion,
          .rank = identity.member,
          .number = identity.world_size,
          .key = identity.job.substr(0, kMaxKeyBytes)};
}

}  // namespace

StoreClient::StoreClient(kit::UniqueFd socket, const Identity& identity, base::AbortSignal& abort,
                         std::function<void(int, bool)> on_stop)
    : socket_(std::move(socket)),
      identity_(identity),
      abort_(abort),
      on_stop_(std::move(on_stop)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "eventfd");
  // First of all, since the server takes nothing else from a pending connection. If it fails, so
  // does Join.
  (void)Send(HelloOf(identity_));
  HearAborts();
  reader_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "store");
    ReadLoop();
  });
}

void StoreClient::HearAborts() {
  token_ = abort_.Listen([this](const Status& reason) {
    bool tell = false;
    {
      std::lock_guard lock(mutex_);
      const bool heard_of_it = closed_ || !cause_.ok();
      tell = !heard_of_it && !leaving_ && reason.code() != StatusCode::kInterrupted;
      changed_.notify_all();
    }
    // A report that does not get through is repeated by Leave or replaced by the loss of this rank.
    if (tell) Report(reason);
  });
}

StoreClient::~StoreClient() {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  abort_.Forget(token_);
  shutdown(socket_.get(), SHUT_RDWR);
  if (reader_.joinable()) reader_.join();
}

Status StoreClient::Join(base::TimePoint deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline,
                      [this] { return together_ || !refusal_.ok() || abort_.raised(); });
  if (!refusal_.ok()) return refusal_;
  const bool started = together_;
  lock.unlock();
  if (abort_.raised()) return abort_.reason();
  if (started) return {};
  return Status::Error(StatusCode::kRendezvous, "%s did not say in time that all ranks%s are there",
                       identity_.server.c_str(),
                       base::IsServer(identity_.member) ? " and servers" : "");
}

// Until this member has said hello again, the store says nothing that raises, but that the run ends:
// so what is cleared is what was raised before. Again where another is lost before all have joined.
Status StoreClient::Rejoin(const Status& cause, base::TimePoint deadline) {
  abort_.Raise(cause);
  for (;;) {
    const auto is_over = [this] { return closed_ || !cause_.ok(); };
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, deadline, [&] { return regroups_ || is_over(); });
      if (!regroups_ || is_over()) return cause;
      regroups_ = together_ = false;
    }
    abort_.Clear();
    HearAborts();
    if (const std::lock_guard lock(mutex_); is_over()) return cause;
    (void)Send(HelloOf(identity_));
    Status joined = Join(deadline);
    if (!abort_.raised()) return joined;
  }
}

Status StoreClient::Set(std::string_view key, std::string_view value) {
  return Request(MessageKind::kSet, key, value).status();
}

Result<std::string> StoreClient::Get(std::string_view key, int64_t timeout_ms) {
  ENGINE_ASSIGN_OR_RETURN(Message reply, Request(MessageKind::kGet, key, {}, timeout_ms));
  return std::move(reply.value);
}

Result<bool> StoreClient::Has(std::string_view key) {
  ENGINE_ASSIGN_OR_RETURN(Message reply, Request(MessageKind::kHas, key, {}));
  return reply.number != 0;
}

Status StoreClient::Post(std::string_view text) {
  ENGINE_RETURN_IF_ERROR(CheckSizes({}, text));
  if (abort_.raised()) return abort_.reason();
  return Send({.kind = MessageKind::kPost, .value = std::string(text)});
}

Result<Message> StoreClient::Request(MessageKind kind, std::string_view key, std::string_view value,
                                     std::optional<int64_t> limit_ms) {
  ENGINE_RETURN_IF_ERROR(CheckSizes(key, value));
  const int64_t timeout_ms = limit_ms.value_or(limit_ms_ + 2 * kPingMs);
  if (abort_.raised()) return abort_.reason();
  base::TimePoint deadline = base::DeadlineIn(timeout_ms);
  Message request{.kind = kind, .key = std::string(key), .value = std::string(value)};
  {
    std::lock_guard lock(mutex_);
    request.id = next_id_++;
    replies_[request.id];
  }
  const Status sent = Send(request);
  std::unique_lock lock(mutex_);
  std::optional<Message>& reply = replies_[request.id];
  if (sent.ok()) changed_.wait_until(lock, deadline, [&] { return reply || abort_.raised(); });
  std::optional<Message> result = std::move(reply);
  replies_.erase(request.id);
  lock.unlock();
  // Messages come in order: what was answered before the run was given up counts.
  if (result) return std::move(*result);
  if (abort_.raised()) return abort_.reason();
  if (!sent.ok()) return sent;
  if (kind != MessageKind::kGet) {
    return Status::Error(StatusCode::kTimeout, "%s did not answer within %lld ms",
                         identity_.server.c_str(), static_cast<long long>(timeout_ms));
  }
  ENGINE_RETURN_IF_ERROR(
      Send({.kind = MessageKind::kCancel, .id = request.id, .key = request.key}));
  return base::StoreTimeout(key, timeout_ms);
}

Status StoreClient::Send(const Message& message) {
  const std::string frame = Encode(message);
  const std::lock_guard lock(send_mutex_);
  if (!outbox_.empty() && outbox_.size() + frame.size() > kMaxOutboxBytes) {
    return Status::Error(StatusCode::kTimeout, "%s takes no more data", identity_.server.c_str());
  }
  if (outbox_begin_ > outbox_.size() / 2) outbox_.erase(0, std::exchange(outbox_begin_, 0));
  outbox_ += frame;
  return WriteOut();
}

// Under send_mutex_.
Status StoreClient::WriteOut() {
  while (outbox_begin_ < outbox_.size()) {
    const ssize_t size = send(socket_.get(), outbox_.data() + outbox_begin_,
                              outbox_.size() - outbox_begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size > 0) {
      outbox_begin_ += static_cast<size_t>(size);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      eventfd_write(wake_.get(), 1);
      return {};
    } else if (errno != EINTR) {
      outbox_.clear();
      outbox_begin_ = 0;
      return Status::Error(StatusCode::kPeerLost, "lost the connection to %s: %s",
                           identity_.server.c_str(), strerror(errno))
          .WithRank(identity_.server_rank);
    }
  }
  outbox_.clear();
  outbox_begin_ = 0;
  if (last_said_) shutdown(socket_.get(), SHUT_WR);
  return {};
}

// Until there is something to receive, and sends meanwhile; false when nothing has come for a while.
// The reader drains the eventfd after it has tried to send: what is left then waits for POLLOUT.
bool StoreClient::Wait() {
  pollfd fds[] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  for (;;) {
    {
      const std::lock_guard lock(send_mutex_);
      const bool more = !outbox_.empty();
      if (more) (void)WriteOut();  // that the connection is lost shows in what is received
      eventfd_t counted = 0;
      if (more || fds[1].revents != 0) eventfd_read(wake_.get(), &counted);
      fds[0].events = outbox_.empty() ? POLLIN : POLLIN | POLLOUT;
    }
    const int ready = poll(fds, std::size(fds), kPingMs);
    if (ready == 0) return false;
    if (ready > 0 && (fds[0].revents & ~POLLOUT) != 0) return true;
  }
}

void StoreClient::ReadLoop() {
  const Status ended =
      Status::Error(StatusCode::kPeerLost, "lost the connection to %s, which ended",
                    identity_.server.c_str())
          .WithRank(identity_.server_rank);
  MessageReader reader;
  std::vector<char> buffer(kReadBytes);
  Silence silence;
  bool has_spoken = false;
  for (;;) {
    const ssize_t size = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Before it has said anything, the deadline of Join counts.
      if (!Wait() && has_spoken) silent_ms_ = silence.Look();
      if (silent_ms_ <= limit_ms_) continue;
      return ConnectionLost(Silent("it is stopped, hangs or is out of reach"));
    }
    if (size <= 0) return ConnectionLost(ended);
    has_spoken = true;
    silence.Heard();
    silent_ms_ = 0;
    reader.Append(buffer.data(), static_cast<size_t>(size));
    Message message;
    for (;;) {
      Result<bool> next = reader.Next(&message);
      if (next.ok() && !*next) break;
      if (!next.ok() || !Dispatch(message)) return ConnectionLost(ended);
    }
  }
}

// What may be said before a store that must prove itself has done so. False when the stream is
// over.
bool StoreClient::Handshake(const Message& message) {
  using Side = ServerKey::Side;
  if (message.kind == MessageKind::kChallenge) {
    if (!identity_.key) {
      Refuse(identity_.server + " asks for a key: give that of the run with --key-file");
      return false;
    }
    if (!challenge_.empty() || message.key.size() != ServerKey::kNonceBytes) return false;
    challenge_ = message.key;
    nonce_ = ServerKey::MakeNonce();
    (void)Send(
        {.kind = MessageKind::kProof,
         .key = nonce_ + identity_.key->Prove(Side::kMember, challenge_, nonce_,
                                              identity_.member)});  // if it fails, so does Join
    return true;
  }
  if (message.kind == MessageKind::kProof && identity_.key) {
    proven_ = identity_.key->Check(message.key, Side::kStore, challenge_, nonce_, identity_.member);
  }
  if (!proven_) {
    Refuse(identity_.server + " does not know the key in the file given with --key-file");
  }
  return proven_;
}

void StoreClient::Refuse(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  refusal_ = Status::Error(StatusCode::kRendezvous, "%s", sentence.c_str());
  changed_.notify_all();
}

bool StoreClient::Dispatch(Message& message) {
  const bool handshake =
      message.kind == MessageKind::kChallenge || message.kind == MessageKind::kProof;
  const bool unproven = identity_.key && !proven_ && message.kind != MessageKind::kRefused;
  if (handshake || unproven) return Handshake(message);
  switch (message.kind) {
    case MessageKind::kStop:
      on_stop_(message.number, started());
      return true;
    case MessageKind::kAbort: {
      const std::lock_guard lock(mutex_);
      cause_ = DecodeStatus(message);
      changed_.notify_all();  // for Rejoin, which has raised the abort itself
    }
      abort_.Raise(AbortReason(cause()));
      return true;
    case MessageKind::kRegroup: {
      abort_.Raise(AbortReason(DecodeStatus(message)));
      const std::lock_guard lock(mutex_);
      regroups_ = true;
      changed_.notify_all();
    }
      return true;
    case MessageKind::kPost:
      posts_.Deliver(message.value);
      return true;
    case MessageKind::kWelcome:
      posts_.Forget();  // of ranks that have begun again since
      return Answer(message);
    case MessageKind::kPing:
      limit_ms_ = message.number;
      (void)Send({.kind = MessageKind::kPing});  // a lost connection is noticed by the reader
      return true;
    case MessageKind::kRefused:
      Refuse(message.value);
      return true;
    default:
      return Answer(message);
  }
}

bool StoreClient::Answer(Message& message) {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
  if (message.kind == MessageKind::kWelcome) {
    const RunShape shape{message.number, static_cast<int>(message.id), message.rank != 0};
    if (!Plausible(shape) || !shape.Has(identity_.member)) return false;
    shape_ = shape;
    together_ = true;
    std::istringstream left(message.value);
    for (int member; left >> member;) shape_->left.push_back(member);
    return true;
  }
  if (message.kind != MessageKind::kReply) return false;  // what only a member may send
  const auto waiting = replies_.find(message.id);
  // An answer that nobody waits for any more is dropped.
  if (waiting != replies_.end()) waiting->second = std::move(message);
  return true;
}

Status StoreClient::Silent(const char* then) const {
  return Status::Error(StatusCode::kPeerLost, "lost %s, which gave no sign of life for %lld ms: %s",
                       identity_.server.c_str(), static_cast<long long>(silent_ms_), then)
      .WithRank(identity_.server_rank);
}

Status StoreClient::Explain(const Status& failure) const {
  const bool secondary = base::IsSecondary(failure.code());
  const bool says_so = secondary && lost();
  const bool waited = secondary || failure.code() == StatusCode::kTimeout;
  return waited && !says_so && silent_ms_ >= kSuspectMs ? Silent(failure.message()) : failure;
}

// The socket is shut, so that nobody waits for it to take more data.
void StoreClient::ConnectionLost(const Status& why) {
  shutdown(socket_.get(), SHUT_RDWR);
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    lost_ = !leaving_ && refusal_.ok();
    changed_.notify_all();
    if (!lost_) return;
  }
  abort_.Raise(why);
}

void StoreClient::RequestStop(int signal) {
  const bool gives_up = abort_.reason().code() == StatusCode::kInterrupted;
  (void)Send({.kind = MessageKind::kStop, .id = gives_up ? 1u : 0u, .number = signal});
}

void StoreClient::Leave(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  base::TimePoint deadline = base::DeadlineIn(kReportTimeoutMs);
  // Without a connection there is nobody to tell: the server has counted this rank as lost.
  if (!status.ok()) Report(status);
  (void)Send(Message{});  // kBye
  {
    const std::lock_guard lock(send_mutex_);
    last_said_ = true;
    (void)WriteOut();
  }
  // The server closes when it has read that; closing first could reset the connection under it.
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [this] { return closed_ || !refusal_.ok(); });
}

}  // namespace engine::launch
