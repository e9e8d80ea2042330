// All of it runs on one thread, that of the supervisor, and nothing blocks. While messages are
// handled a connection is only marked (closing: when its output is written; broken: at once);
// Reap alone removes connections, so no reference dies under a loop that uses it.
//
// Work is done for connections that have something to say, never for each at each wake. They are
// watched edge-triggered: a read goes on until there is nothing left, and what cannot be written at
// once is written when epoll says that there is room again. Nothing is told of a failed write: the
// read that follows finds out.

#include "app/launch/store_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "app/launch/deadlines.h"
#include "app/launch/endpoint.h"
#include "app/launch/member.h"

namespace engine::launch {
namespace {

constexpr int kEvents = 256;  // taken from epoll at once
// Connections that have not joined yet; more wait in the backlog.
constexpr size_t kMaxPendingConnections = 256;

using Bytes = std::shared_ptr<const std::string>;

Bytes Frame(const Message& message) {
  return std::make_shared<const std::string>(Encode(message));
}

// The frame of a reply in front of `value`.
Bytes ValueHead(uint32_t id, const Bytes& value) {
  return std::make_shared<const std::string>(
      EncodeHead({.kind = MessageKind::kReply, .id = id}, value->size()));
}

// An address without its port.
std::string_view HostOf(const std::string& address) {
  return std::string_view(address).substr(0, address.rfind(':'));
}

}  // namespace

StoreServer::StoreServer(Observer& observer)
    : observer_(observer), epoll_(epoll_create1(EPOLL_CLOEXEC)), read_buffer_(kReadBytes) {
  if (!epoll_) throw std::system_error(errno, std::generic_category(), "epoll_create1");
}

void StoreServer::Listen(MemberListener listener) {
  listener_ = std::move(listener);
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.ptr = nullptr}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.socket.get(), &event);
}

kit::UniqueFd StoreServer::Connect() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return {};
  Add(kit::UniqueFd(pair[0]));
  return kit::UniqueFd(pair[1]);
}

StoreServer::Connection& StoreServer::Add(kit::UniqueFd socket) {
  fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  connection->reader.set_max_value_bytes(0);  // kHello and kProof carry none
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.ptr = connection.get()}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->socket.get(), &event);
  connections_.push_back(std::move(connection));
  return *connections_.back();
}

void StoreServer::Handle() {
  std::array<epoll_event, kEvents> events;
  int count = 0;
  do {
    count = epoll_wait(epoll_.get(), events.data(), kEvents, 0);
    for (int i = 0; i < count; ++i) {
      auto* const connection = static_cast<Connection*>(events[i].data.ptr);
      if (connection == nullptr) {
        somebody_waits_ = true;
        continue;
      }
      Read(*connection);
      Write(*connection);
    }
    if (somebody_waits_) Accept();
    Reap();
  } while (count == kEvents);
}

void StoreServer::Drain(int member) {
  for (auto& connection : connections_) {
    if (connection->member != member && connection->member != base::kNobody) continue;
    Read(*connection);
    Write(*connection);
  }
}

void StoreServer::Forget(int member) {
  const auto found = joined_.find(member);
  if (found == joined_.end()) return;
  found->second->closing = true;
  End(*found->second);
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

// A child shares the epoll instance with its parent, so nothing is taken out of it here.
void StoreServer::CloseAll() {
  epoll_.Close();
  listener_.socket.Close();
  waiters_.clear();
  pending_.clear();
  joined_.clear();
  connections_.clear();
}

// Those for whom there is no room wait until the next call of Handle.
void StoreServer::Accept() {
  while (pending_.size() < kMaxPendingConnections || MakeRoom(kScarceHelloMs)) {
    kit::UniqueFd socket = AcceptFrom(listener_.socket);
    if (!socket) {
      const bool no_descriptor = errno == EMFILE || errno == ENFILE;
      somebody_waits_ = errno != EAGAIN && errno != EWOULDBLOCK;
      if (no_descriptor && !MakeRoom(0)) {
        observer_.OnFail(base::kNobody,
                         Status::Error(StatusCode::kResourceExhausted,
                                       "no descriptor is left to let another member in: raise the "
                                       "limit of open files of this process (ulimit -n)"));
      }
      return;
    }
    std::string address = EndText(socket, getpeername);
    Connection& connection = Add(std::move(socket));
    connection.address = std::move(address);
    pending_.push_back(&connection);
  }
}

// Ends the oldest pending connection of the host that has most of them, if it has had `least_ms`.
// So many from one host keep out none of another, and idle ones nobody for long.
bool StoreServer::MakeRoom(int64_t least_ms) {
  std::map<std::string_view, int> held;
  for (const Connection* connection : pending_) ++held[HostOf(connection->address)];
  const auto oldest = std::ranges::max_element(pending_, {}, [&](const Connection* connection) {
    return held[HostOf(connection->address)];
  });  // the first of equals
  if (oldest == pending_.end()) return false;
  if (!(*oldest)->HasHad(least_ms)) return false;
  End(**oldest, "it did not say in time who it is, and others wait");
  return true;
}

void StoreServer::Read(Connection& connection) {
  while (!connection.broken && !connection.closing) {
    ssize_t size = recv(connection.socket.get(), read_buffer_.data(), read_buffer_.size(), 0);
    ++traffic_.reads;
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (size <= 0) return End(connection);
    if (connection.member != base::kNobody) observer_.OnHeard(connection.member);
    traffic_.bytes_in += size;
    connection.reader.Append(read_buffer_.data(), static_cast<size_t>(size));
    Message message;
    for (;;) {
      Result<bool> next = connection.reader.Next(&message);
      if (!next.ok()) return End(connection);
      if (!*next || connection.broken || connection.closing) break;
      ++traffic_.messages_in;
      Dispatch(connection, message);
    }
  }
}

void StoreServer::Write(Connection& connection) {
  while (!connection.broken && !connection.out.empty()) {
    const std::string& piece = *connection.out.front();
    const int more = connection.out.size() > 1 ? MSG_MORE : 0;
    const ssize_t size =
        send(connection.socket.get(), piece.data() + connection.out_begin,
             piece.size() - connection.out_begin, MSG_NOSIGNAL | MSG_DONTWAIT | more);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      connection.blocked = true;
      return;
    }
    if (size < 0) {
      connection.out.clear();
      break;
    }
    // Room where there was none: it has read, though it may not come to a ping for a while.
    const bool took = std::exchange(connection.blocked, false);
    if (took && connection.member != base::kNobody) observer_.OnHeard(connection.member);
    traffic_.bytes_out += size;
    connection.out_begin += static_cast<size_t>(size);
    if (connection.out_begin < piece.size()) continue;
    connection.out.pop_front();
    connection.out_begin = 0;
  }
  if (connection.closing && connection.out.empty()) End(connection);
}

void StoreServer::End(Connection& connection, const char* why) {
  if (std::exchange(connection.broken, true)) return;
  some_broken_ = true;
  std::erase(pending_, &connection);
  if (connection.closing) return;
  if (connection.member != base::kNobody) return observer_.OnLost(connection.member);
  if (connection.adopted()) return;
  const char* own = connection.hello ? "it did not prove that it knows the key"
                                     : "it ended before it said who it is";
  observer_.OnRefusedConnection(connection.address, why != nullptr ? why : own);
}

void StoreServer::Reap() {
  while (!pending_.empty() && pending_.front()->HasHad(kHelloTimeoutMs)) {
    End(*pending_.front(), "it did not say in time who it is");
  }
  if (!std::exchange(some_broken_, false)) return;
  std::erase_if(waiters_, [](const Waiter& waiter) { return std::get<1>(waiter)->broken; });
  std::erase_if(connections_, [this](const auto& connection) {
    if (!connection->broken) return false;
    const auto joined = joined_.find(connection->member);
    if (joined != joined_.end() && joined->second == connection.get()) joined_.erase(joined);
    // While a child that was forked just now still holds the socket, closing it does not do this.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket.get(), nullptr);
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
      observer_.OnSet(connection.member, message.key);
      Put(message.key, std::move(message.value));
      return Send(connection, Frame({.kind = MessageKind::kReply, .id = message.id}));
    case MessageKind::kGet:
      return Get(connection, message);
    case MessageKind::kCancel:
      waiters_.erase({message.key, &connection, message.id});  // if it is not answered yet
      return;
    case MessageKind::kHas:
      return Send(connection, Frame({.kind = MessageKind::kReply,
                                     .id = message.id,
                                     .number = values_.contains(message.key) ? 1 : 0}));
    case MessageKind::kPost:
      message.rank = connection.member;
      return Broadcast(message, connection.member);
    case MessageKind::kFail:
      return observer_.OnFail(connection.member, DecodeStatus(message));
    case MessageKind::kHello:
      return observer_.OnReady(connection.member);
    case MessageKind::kPing:
      return;  // it was heard
    case MessageKind::kStop:
      return observer_.OnStop(message.number, message.id != 0);
    case MessageKind::kBye:
      connection.closing = true;
      return observer_.OnBye(connection.member);
    default:
      return End(connection);  // a message that only the store may send
  }
}

// Another protocol is refused by the observer, with a sentence: it need not know the challenge.
void StoreServer::Hello(Connection& connection, const Message& message) {
  const bool prove = listener_.key && !connection.adopted() && message.id == kProtocolVersion;
  if (!prove) return Admit(connection, message);
  connection.hello = message;
  connection.challenge = ServerKey::MakeNonce();
  Send(connection, Frame({.kind = MessageKind::kChallenge, .key = connection.challenge}));
}

void StoreServer::Proof(Connection& connection, const Message& message) {
  const std::string_view text = message.key;
  const std::string_view nonce = text.substr(0, ServerKey::kNonceBytes);
  const std::string_view proof = text.substr(nonce.size());
  const int member = connection.hello->rank;
  if (!listener_.key->Check(proof, ServerKey::Side::kMember, connection.challenge, nonce, member)) {
    return Refuse(connection,
                  "it does not know the key of this run: give both sides the same "
                  "--key-file");
  }
  Send(connection, Frame({.kind = MessageKind::kProof,
                          .key = listener_.key->Prove(ServerKey::Side::kStore, connection.challenge,
                                                      nonce, member)}));
  Admit(connection, *connection.hello);
}

void StoreServer::Admit(Connection& connection, const Message& hello) {
  const Status status = observer_.OnHello(hello, connection.adopted());
  if (!status.ok()) return Refuse(connection, status.message());
  connection.member = hello.rank;
  joined_[connection.member] = &connection;
  std::erase(pending_, &connection);
  connection.reader.set_max_value_bytes(kMaxValueBytes);
  observer_.OnJoined(connection.member);
  if (abort_) Send(connection, Frame(*abort_));
}

void StoreServer::Refuse(Connection& connection, const std::string& why) {
  Send(connection, Frame({.kind = MessageKind::kRefused, .value = why}));
  connection.closing = true;
  if (!connection.adopted()) observer_.OnRefusedConnection(connection.address, why);
}

void StoreServer::Clear() {
  values_.clear();
  waiters_.clear();
}

void StoreServer::Put(const std::string& key, std::string value) {
  if (key == kRemoveKey) {
    std::erase_if(values_, [&](const auto& one) { return one.first.starts_with(value); });
    return;
  }
  const Bytes bytes = std::make_shared<const std::string>(std::move(value));
  const auto first = waiters_.lower_bound({key, nullptr, 0});
  auto waiter = first;
  for (; waiter != waiters_.end() && std::get<0>(*waiter) == key; ++waiter) {
    const auto& [waited_for, connection, id] = *waiter;
    Send(*connection, ValueHead(id, bytes), bytes);
  }
  waiters_.erase(first, waiter);
  values_[key] = bytes;
}

// Who comes over loopback, or has a socket of our own, is on the host to which the others have come.
std::string StoreServer::AddressOf(const Connection& asker) const {
  std::string address = NetworkAddress(asker.socket, getpeername);
  for (const auto& [member, connection] : joined_) {
    if (address.empty()) address = NetworkAddress(connection->socket, getsockname);
  }
  return address;
}

void StoreServer::Get(Connection& connection, const Message& message) {
  if (message.key == kAddressKey) {
    const auto address = std::make_shared<const std::string>(AddressOf(connection));
    return Send(connection, ValueHead(message.id, address), address);
  }
  const auto found = values_.find(message.key);
  if (found != values_.end()) {
    return Send(connection, ValueHead(message.id, found->second), found->second);
  }
  waiters_.insert({message.key, &connection, message.id});
}

// Written at once if nothing is before it: a rank may be waiting for it to start a transfer.
void StoreServer::Send(Connection& connection, const Bytes& frame, const Bytes& value) {
  if (connection.broken || connection.closing) return;
  ++traffic_.messages_out;
  const bool first = connection.out.empty();
  connection.out.push_back(frame);
  if (value != nullptr && !value->empty()) connection.out.push_back(value);
  if (first) Write(connection);
}

void StoreServer::Send(int member, const Message& message) {
  const auto found = joined_.find(member);
  if (found != joined_.end()) Send(*found->second, Frame(message));
}

// What a rank sends to the others is no business of servers.
void StoreServer::Broadcast(const Message& message, int sender) {
  const Bytes frame = Frame(message);
  for (auto& [member, connection] : joined_) {
    const bool to_ranks = sender != base::kNobody;
    if (member != sender && !(to_ranks && base::IsServer(member))) Send(*connection, frame);
  }
}

void StoreServer::Abort(const Status& cause) {
  if (abort_) return;
  abort_ = EncodeStatus(MessageKind::kAbort, cause);
  Broadcast(*abort_);
}

}  // namespace engine::launch
