#include "core/launch/store_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "core/launch/endpoint.h"

namespace engine {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// Connections that have not said kHello yet; more wait in the backlog.
constexpr int kMaxStrangers = 64;
constexpr int64_t kHelloTimeoutMs = 10000;

Message Reply(MessageKind kind, uint32_t id, int32_t number = 0, std::string value = {}) {
  Message message;
  message.kind = kind;
  message.id = id;
  message.number = number;
  message.value = std::move(value);
  return message;
}

}  // namespace

void StoreServer::Add(UniqueFd socket, int64_t hello_timeout_ms) {
  fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  connection->reader.set_max_value_bytes(0);  // kHello carries none
  connection->hello_deadline = DeadlineIn(hello_timeout_ms);
  connections_.push_back(std::move(connection));
}

void StoreServer::AddPollFds(std::vector<pollfd>* out) const {
  if (listener_.valid()) out->push_back({listener_.get(), POLLIN, 0});
  for (const auto& connection : connections_) {
    short events = POLLIN;
    if (!connection->out.empty()) events |= POLLOUT;
    out->push_back({connection->socket.get(), events, 0});
  }
}

void StoreServer::Handle() {
  if (listener_.valid()) Accept();
  for (auto& connection : connections_) Read(*connection);
  for (auto& connection : connections_) Write(*connection);
  Reap();
}

void StoreServer::Drain(int rank) {
  for (auto& connection : connections_) {
    if (connection->rank == rank || connection->rank < 0) Read(*connection);
  }
}

void StoreServer::Flush(int64_t timeout_ms) {
  TimePoint deadline = DeadlineIn(timeout_ms);
  for (;;) {
    std::vector<pollfd> fds;
    for (auto& connection : connections_) {
      Write(*connection);
      if (!connection->broken && !connection->out.empty()) {
        fds.push_back({connection->socket.get(), POLLOUT, 0});
      }
    }
    if (fds.empty() || Passed(deadline)) return;
    poll(fds.data(), fds.size(), RemainingMs(deadline));
  }
}

void StoreServer::CloseAll() {
  listener_.reset();
  waiters_.clear();
  connections_.clear();
}

void StoreServer::Accept() {
  int strangers = 0;
  for (const auto& connection : connections_) strangers += connection->rank < 0;
  for (; strangers < kMaxStrangers; ++strangers) {
    UniqueFd socket = AcceptFrom(listener_);
    if (!socket.valid()) return;
    Add(std::move(socket), kHelloTimeoutMs);
  }
}

void StoreServer::Read(Connection& connection) {
  read_buffer_.resize(kReadBytes);
  while (!connection.broken && !connection.closing) {
    ssize_t size = recv(connection.socket.get(), read_buffer_.data(), read_buffer_.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (size <= 0) return End(connection);
    connection.reader.Append(read_buffer_.data(), static_cast<size_t>(size));
    Message message;
    for (;;) {
      Result<bool> next = connection.reader.Next(&message);
      if (!next.ok()) return End(connection);
      if (!*next || connection.broken || connection.closing) break;
      Dispatch(connection, message);
    }
  }
}

void StoreServer::Write(Connection& connection) {
  while (!connection.broken && connection.out_begin < connection.out.size()) {
    ssize_t size = send(connection.socket.get(), connection.out.data() + connection.out_begin,
                        connection.out.size() - connection.out_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (size < 0) return End(connection);
    connection.out_begin += static_cast<size_t>(size);
  }
  connection.out.clear();
  connection.out_begin = 0;
  if (connection.closing) connection.broken = true;
}

void StoreServer::End(Connection& connection) {
  connection.broken = true;
  if (connection.rank >= 0 && !connection.said_bye) observer_.OnLost(connection.rank);
}

void StoreServer::Reap() {
  std::erase_if(connections_, [this](const auto& connection) {
    bool silent = connection->rank < 0 && Passed(connection->hello_deadline);
    if (!connection->broken && !silent) return false;
    std::erase_if(waiters_,
                  [&](const auto& entry) { return entry.second.connection == connection.get(); });
    return true;
  });
}

void StoreServer::Dispatch(Connection& connection, Message& message) {
  if (connection.rank < 0) {
    if (message.kind == MessageKind::kHello) return Hello(connection, message);
    return End(connection);
  }
  switch (message.kind) {
    case MessageKind::kSet:
      return Set(connection, message);
    case MessageKind::kGet:
      return Get(connection, message);
    case MessageKind::kCancel:
      return Cancel(connection, message.id);
    case MessageKind::kHas:
      return Send(connection,
                  Reply(MessageKind::kHasDone, message.id, values_.contains(message.key) ? 1 : 0));
    case MessageKind::kPost:
      return Relay(connection, message);
    case MessageKind::kFail:
      return observer_.OnFail(connection.rank, DecodeStatus(message));
    case MessageKind::kStop:
      return observer_.OnStop(message.number);
    case MessageKind::kBye:
      connection.said_bye = true;
      connection.closing = true;
      return observer_.OnBye(connection.rank);
    default:
      return End(connection);  // a message that only a server may send
  }
}

void StoreServer::Hello(Connection& connection, const Message& message) {
  Status verdict = observer_.OnHello(message);
  if (!verdict.ok()) {
    Send(connection, Reply(MessageKind::kRefused, 0, 0, verdict.message()));
    connection.closing = true;
    return;
  }
  connection.rank = message.rank;
  connection.reader.set_max_value_bytes(kMaxValueBytes);
  if (abort_) Send(connection, *abort_);
  observer_.OnJoined(message.rank);
}

void StoreServer::Set(Connection& connection, Message& message) {
  auto [begin, end] = waiters_.equal_range(message.key);
  for (auto waiter = begin; waiter != end; ++waiter) {
    for (auto& other : connections_) {
      if (other.get() != waiter->second.connection) continue;
      Send(*other, Reply(MessageKind::kValue, waiter->second.id, 0, message.value));
    }
  }
  waiters_.erase(begin, end);
  values_[message.key] = std::move(message.value);
  Send(connection, Reply(MessageKind::kSetDone, message.id));
}

void StoreServer::Get(Connection& connection, const Message& message) {
  auto found = values_.find(message.key);
  if (found == values_.end()) {
    waiters_.emplace(message.key, Waiter{&connection, message.id});
  } else {
    Send(connection, Reply(MessageKind::kValue, message.id, 0, found->second));
  }
}

void StoreServer::Relay(const Connection& sender, Message& message) {
  message.rank = sender.rank;
  for (auto& other : connections_) {
    if (other.get() == &sender || other->rank < 0) continue;
    Send(*other, message);
    Write(*other);  // now: a rank may be waiting for it to start a transfer
  }
}

void StoreServer::Cancel(const Connection& connection, uint32_t id) {
  std::erase_if(waiters_, [&](const auto& entry) {
    return entry.second.connection == &connection && entry.second.id == id;
  });
}

void StoreServer::Send(Connection& connection, const Message& message) {
  if (!connection.broken && !connection.closing) connection.out += Encode(message);
}

void StoreServer::Broadcast(const Message& message) {
  for (auto& connection : connections_) {
    if (connection->rank >= 0) Send(*connection, message);
  }
}

void StoreServer::Abort(const Status& cause) {
  if (abort_) return;
  abort_ = EncodeStatus(MessageKind::kAbort, cause);
  Broadcast(*abort_);
}

}  // namespace engine
