// No rank waits for ever: whoever waits for one message moves all that it has posted, in both
// directions, and no socket call blocks. So a message that was posted on both sides moves, whatever
// either side waits for. A connection is made by the rank that needs it first (tcp_kit/connections).
#include "transport.h"

#include <gloo/transport/pair.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>

#include "tcp_kit/socket.h"

namespace engine::gloo {
namespace {

void ThrowIfError(Status status) {
  if (!status.ok()) throw TransferError(std::move(status));
}

// Gloo looks whether there is a pair for each peer, and uses none.
class NoPair final : public ::gloo::transport::Pair {
 public:
  const ::gloo::transport::Address& address() const override { Refuse(); }
  void connect(const std::vector<char>&) override { Refuse(); }
  void close() override {}
  void setSync(bool, bool) override { Refuse(); }
  std::unique_ptr<::gloo::transport::Buffer> createSendBuffer(int, void*, size_t) override {
    Refuse();
  }
  std::unique_ptr<::gloo::transport::Buffer> createRecvBuffer(int, void*, size_t) override {
    Refuse();
  }
  void send(::gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) override { Refuse(); }
  void recv(::gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) override { Refuse(); }

 private:
  [[noreturn]] static void Refuse() {
    throw TransferError(Status::Error(StatusCode::kInternal, "an algorithm of Gloo needs pairs"));
  }
};

}  // namespace

// Counts what has moved and was not waited for yet.
class Buffer final : public ::gloo::transport::UnboundBuffer {
 public:
  Buffer(Transport& transport, void* data, size_t bytes)
      : UnboundBuffer(data, bytes), transport_(transport) {}

  bool waitRecv(int* rank, std::chrono::milliseconds) override { return Wait(&received, rank); }
  bool waitSend(int* rank, std::chrono::milliseconds) override { return Wait(&sent, rank); }
  void abortWaitRecv() override {}  // nobody asks for it: a failure ends the connections
  void abortWaitSend() override {}

  void send(int peer, uint64_t, size_t offset, size_t bytes) override {
    transport_.Send(peer, this, At(offset), SizeFrom(offset, bytes));
  }
  void recv(int peer, uint64_t, size_t offset, size_t bytes) override {
    transport_.Receive(peer, this, At(offset), SizeFrom(offset, bytes));
  }
  void recv(std::vector<int>, uint64_t, size_t, size_t) override {
    ThrowIfError(Status::Error(StatusCode::kInternal, "a receive of Gloo from several ranks"));
  }

  int received = 0, sent = 0;
  int last_peer = -1;

 private:
  bool Wait(int* count, int* rank) {
    while (*count == 0) transport_.Move();
    --*count;
    if (rank) *rank = last_peer;
    return true;
  }
  std::byte* At(size_t offset) const noexcept { return static_cast<std::byte*>(ptr) + offset; }
  size_t SizeFrom(size_t offset, size_t bytes) const noexcept {
    return bytes == kUnspecifiedByteCount ? size - offset : bytes;
  }

  Transport& transport_;
};

Transport::Transport(tcp::Connections& connections, int lane, kit::Progress& progress)
    : Context(connections.ranks().rank, connections.ranks().world_size),
      connections_(connections),
      lane_(lane),
      progress_(progress),
      links_(static_cast<size_t>(size)) {
  for (auto& pair : pairs_) pair = std::make_unique<NoPair>();
}

void Transport::Open(kit::PooledWork& work) noexcept {
  header_ = tcp::HeaderOf(work.transfer());
  work_ = &work;
  for (Link& link : links_) link.sends_header = link.receives_header = true;
}

std::unique_ptr<::gloo::transport::UnboundBuffer> Transport::createUnboundBuffer(void* data,
                                                                                 size_t bytes) {
  return std::make_unique<Buffer>(*this, data, bytes);
}

Transport::Link& Transport::Use(int peer) {
  Link& link = links_[static_cast<size_t>(peer)];
  if (link.socket >= 0) return link;
  waiting_for_.store(peer, std::memory_order_relaxed);
  auto socket = connections_.Get(lane_, peer);
  ThrowIfError(socket.status());
  link.socket = *socket;
  return link;
}

void Transport::Send(int peer, Buffer* buffer, void* data, size_t bytes) {
  Link& link = Use(peer);
  const size_t header = std::exchange(link.sends_header, false) ? sizeof(header_) : 0;
  link.sends.push_back({buffer, {{&header_, header}, {data, bytes}}});
  work_->MarkStarted();
  (void)MoveMessages(peer, link.sends, &Buffer::sent, sendmsg);
}

void Transport::Receive(int peer, Buffer* buffer, void* data, size_t bytes) {
  Link& link = Use(peer);
  const bool has_header = std::exchange(link.receives_header, false);
  const size_t header = has_header ? sizeof(link.theirs) : 0;
  link.receives.push_back(
      {buffer, {{&link.theirs, header}, {data, bytes}}, has_header ? &link.theirs : nullptr});
}

void Transport::Move() {
  bool moved = false;
  for (int peer = 0; peer < size; ++peer) {
    Link& link = links_[static_cast<size_t>(peer)];
    moved |= MoveMessages(peer, link.sends, &Buffer::sent, sendmsg);
    moved |= MoveMessages(peer, link.receives, &Buffer::received, recvmsg);
  }
  if (!moved) AwaitSockets();
}

// What the call moves of the messages, until it says EAGAIN; each adds one to `ended`. A header is
// received alone: of another transfer less may follow than this one has room for.
template <typename Call>
bool Transport::MoveMessages(int peer, std::deque<Message>& messages, int Buffer::*ended,
                             const Call& call) {
  bool moved = false;
  while (!messages.empty()) {
    Message& message = messages.front();
    if (tcp::Total(message.pieces) > 0) {
      msghdr packet{};
      packet.msg_iov = message.pieces;
      packet.msg_iovlen = message.unchecked ? 1 : 2;
      const ssize_t bytes =
          call(links_[static_cast<size_t>(peer)].socket, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return moved;
      if (bytes <= 0)
        throw TransferError(tcp::LostConnection(peer, bytes < 0 ? errno : ECONNRESET));
      tcp::Advance(message.pieces, static_cast<size_t>(bytes));
      progress_.Moved(static_cast<uint64_t>(bytes));
    }
    moved = true;
    if (message.unchecked && message.pieces[0].iov_len == 0) {
      ThrowIfError(tcp::CheckHeader(header_, *std::exchange(message.unchecked, nullptr), peer));
    }
    if (tcp::Total(message.pieces) > 0) continue;
    ++(message.buffer->*ended);
    message.buffer->last_peer = peer;
    messages.pop_front();
  }
  return moved;
}

// A deadline or a failure shuts the sockets down, which ends this. A rank that waits in both
// directions is said to wait for the one that it receives from.
void Transport::AwaitSockets() {
  std::vector<pollfd> entries;
  int sends_to = -1, receives_from = -1;
  for (int peer = 0; peer < size; ++peer) {
    const Link& link = links_[static_cast<size_t>(peer)];
    const int events = (link.sends.empty() ? 0 : POLLOUT) | (link.receives.empty() ? 0 : POLLIN);
    if (events == 0) continue;
    entries.push_back({link.socket, static_cast<short>(events), 0});
    if (!link.sends.empty()) sends_to = peer;
    if (!link.receives.empty()) receives_from = peer;
  }
  waiting_for_.store(receives_from < 0 ? sends_to : receives_from, std::memory_order_relaxed);
  poll(entries.data(), entries.size(), -1);
}

}  // namespace engine::gloo
