// All of it runs on one thread, that of the supervisor, and nothing blocks. While messages are
// handled a connection is only marked (closing: when its output is written; broken: at once);
// Reap alone removes connections, so no reference dies under a loop that uses it.

#include "app/launch/store_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "app/launch/deadlines.h"
#include "app/launch/endpoint.h"

namespace engine::launch {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// Connections that have not said kHello yet; more wait in the backlog.
constexpr int kMaxPendingConnections = 64;

Message Reply(MessageKind kind, uint32_t id, int32_t number = 0, std::string value = {}) {
  return {.kind = kind, .id = id, .number = number, .value = std::move(value)};
}

}  // namespace

StoreServer::Connection& StoreServer::Add(kit::UniqueFd socket, int64_t hello_timeout_ms) {
  fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  connection->reader.set_max_value_bytes(0);  // kHello and kProof carry none
  connection->hello_deadline = base::DeadlineIn(hello_timeout_ms);
  connections_.push_back(std::move(connection));
  return *connections_.back();
}

bool StoreServer::Full() const {
  return std::ranges::count(connections_, base::kNobody, [](const auto& connection) {
           return connection->member;
         }) >= kMaxPendingConnections;
}

void StoreServer::AddPollFds(std::vector<pollfd>* out) const {
  // While nobody more is accepted, those who wait must not wake the owner again and again.
  if (listener_ && !Full()) out->push_back({listener_.get(), POLLIN, 0});
  for (const auto& connection : connections_) {
    short events = POLLIN;
    if (!connection->out.empty()) events |= POLLOUT;
    out->push_back({connection->socket.get(), events, 0});
  }
}

void StoreServer::Handle() {
  if (listener_) Accept();
  for (auto& connection : connections_) Read(*connection);
  for (auto& connection : connections_) Write(*connection);
  Reap();
}

void StoreServer::Drain(int member) {
  for (auto& connection : connections_) {
    if (connection->member == member || connection->member == base::kNobody) Read(*connection);
  }
}

void StoreServer::Forget(int member) {
  for (auto& connection : connections_) {
    if (connection->member != member) continue;
    connection->said_bye = true;
    connection->broken = true;
  }
  Reap();
}

void StoreServer::Flush(int64_t timeout_ms) {
  base::TimePoint deadline = base::DeadlineIn(timeout_ms);
  for (;;) {
    std::vector<pollfd> fds;
    for (auto& connection : connections_) {
      Write(*connection);
      if (!connection->broken && !connection->out.empty()) {
        fds.push_back({connection->socket.get(), POLLOUT, 0});
      }
    }
    if (fds.empty() || base::Passed(deadline)) return;
    poll(fds.data(), fds.size(), base::RemainingMs(deadline));
  }
}

void StoreServer::CloseAll() {
  listener_.Close();
  waiters_.clear();
  connections_.clear();
}

void StoreServer::Accept() {
  while (!Full()) {
    kit::UniqueFd socket = AcceptFrom(listener_);
    if (!socket) return;
    std::string address = PeerAddress(socket);
    Add(std::move(socket), kHelloTimeoutMs).address = std::move(address);
  }
}

void StoreServer::Read(Connection& connection) {
  read_buffer_.resize(kReadBytes);
  while (!connection.broken && !connection.closing) {
    ssize_t size = recv(connection.socket.get(), read_buffer_.data(), read_buffer_.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (size <= 0) return End(connection);
    if (connection.member != base::kNobody) observer_.OnHeard(connection.member);
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
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      connection.blocked = true;
      return;
    }
    if (size < 0) return End(connection);
    // Room where there was none: it has read, though it may not come to a ping for a while.
    const bool took = std::exchange(connection.blocked, false);
    if (took && connection.member != base::kNobody) observer_.OnHeard(connection.member);
    connection.out_begin += static_cast<size_t>(size);
  }
  connection.out.clear();
  connection.out_begin = 0;
  if (connection.closing) connection.broken = true;
}

void StoreServer::End(Connection& connection) {
  if (connection.broken) return;
  connection.broken = true;
  if (connection.member == base::kNobody) {
    if (!connection.adopted && !connection.closing) {
      observer_.OnRefusedConnection(connection.address,
                                    connection.hello ? "it did not prove that it knows the key"
                                                     : "it ended before it said who it is");
    }
  } else if (!connection.said_bye) {
    observer_.OnLost(connection.member);
  }
}

void StoreServer::Reap() {
  for (auto& connection : connections_) {
    if (connection->member != base::kNobody || connection->broken) continue;
    if (!base::Passed(connection->hello_deadline)) continue;
    connection->broken = true;
    if (connection->closing) continue;
    observer_.OnRefusedConnection(connection->address, "it did not say in time who it is");
  }
  std::erase_if(connections_, [this](const auto& connection) {
    if (!connection->broken) return false;
    std::erase_if(waiters_,
                  [&](const auto& entry) { return entry.second.connection == connection.get(); });
    return true;
  });
}

void StoreServer::Dispatch(Connection& connection, Message& message) {
  if (connection.member == base::kNobody) {
    if (message.kind == MessageKind::kHello && !connection.hello) return Hello(connection, message);
    if (message.kind == MessageKind::kProof && connection.hello) return Proof(connection, message);
    return End(connection);
  }
  switch (message.kind) {
    case MessageKind::kSet:
      observer_.OnSet(message.key);
      Put(message.key, message.value);
      return Send(connection, Reply(MessageKind::kSetDone, message.id));
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
      return observer_.OnFail(connection.member, DecodeStatus(message));
    case MessageKind::kAllowLosses:
      return observer_.OnAllowLosses(connection.member);
    case MessageKind::kPing:
      return;  // it was heard
    case MessageKind::kStop:
      return observer_.OnStop(message.number);
    case MessageKind::kBye:
      connection.said_bye = true;
      connection.closing = true;
      return observer_.OnBye(connection.member);
    default:
      return End(connection);  // a message that only the store may send
  }
}

// Another protocol is refused by the observer, with a sentence: it need not know the challenge.
void StoreServer::Hello(Connection& connection, const Message& message) {
  const bool prove =
      key_ && !connection.adopted && base::IsServer(message.rank) && message.id == kProtocolVersion;
  if (!prove) return Admit(connection, message);
  connection.hello = message;
  connection.challenge = ServerKey::MakeNonce();
  Send(connection, {.kind = MessageKind::kChallenge, .key = connection.challenge});
}

void StoreServer::Proof(Connection& connection, const Message& message) {
  const std::string_view text = message.key;
  const std::string_view nonce = text.substr(0, ServerKey::kNonceBytes);
  const std::string_view proof = text.substr(nonce.size());
  const int member = connection.hello->rank;
  if (!key_->Check(proof, ServerKey::Side::kMember, connection.challenge, nonce, member)) {
    return Refuse(connection,
                  "it does not know the key of this run: give both sides the same "
                  "--key-file");
  }
  Send(connection,
       {.kind = MessageKind::kProof,
        .key = key_->Prove(ServerKey::Side::kStore, connection.challenge, nonce, member)});
  Admit(connection, *connection.hello);
}

void StoreServer::Admit(Connection& connection, const Message& hello) {
  const Status status = observer_.OnHello(hello, connection.adopted);
  if (!status.ok()) return Refuse(connection, status.message());
  connection.member = hello.rank;
  connection.reader.set_max_value_bytes(kMaxValueBytes);
  if (abort_) Send(connection, *abort_);
  observer_.OnJoined(connection.member);
}

void StoreServer::Refuse(Connection& connection, const std::string& why) {
  Send(connection, Reply(MessageKind::kRefused, 0, 0, why));
  connection.closing = true;
  if (!connection.adopted) observer_.OnRefusedConnection(connection.address, why);
}

void StoreServer::Put(const std::string& key, const std::string& value) {
  auto [begin, end] = waiters_.equal_range(key);
  for (auto waiter = begin; waiter != end; ++waiter) {
    for (auto& other : connections_) {
      if (other.get() != waiter->second.connection) continue;
      Send(*other, Reply(MessageKind::kValue, waiter->second.id, 0, value));
    }
  }
  waiters_.erase(begin, end);
  values_[key] = value;
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
  message.rank = sender.member;
  for (auto& other : connections_) {
    if (other.get() == &sender || other->member < 0) continue;  // a server is no rank
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

void StoreServer::Send(int member, const Message& message) {
  for (auto& connection : connections_) {
    if (connection->member == member) Send(*connection, message);
  }
}

void StoreServer::Broadcast(const Message& message) {
  for (auto& connection : connections_) {
    if (connection->member != base::kNobody) Send(*connection, message);
  }
}

void StoreServer::Abort(const Status& cause) {
  if (abort_) return;
  abort_ = EncodeStatus(MessageKind::kAbort, cause);
  Broadcast(*abort_);
}

}  // namespace engine::launch
