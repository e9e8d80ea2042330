// Messages of SOCK_SEQPACKET: each arrives whole or not at all, and the kernel hangs up for a
// process that dies. No descriptor here blocks; who waits polls, with a deadline.
#include "socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace engine::shm {
namespace {

constexpr int kBacklog = 1024;

socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) noexcept {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Status NoSocket() noexcept {
  return Status::Error(StatusCode::kResourceExhausted, "no socket: %s", std::strerror(errno));
}

Result<Socket> Make() noexcept {
  kit::UniqueFd descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (descriptor) return Socket(std::move(descriptor));
  return NoSocket();
}

// An abstract name has no permissions: every process of this network namespace may connect. The
// kernel says whose process it is, and that cannot be forged.
bool SameUser(int descriptor) noexcept {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == geteuid();
}

}  // namespace

Result<Socket> Socket::Listen(const std::string& name) noexcept {
  ENGINE_ASSIGN_OR_RETURN(Socket listener, Make());
  sockaddr_un address;
  const socklen_t size = AbstractAddress(name, &address);
  if (bind(listener.descriptor_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
      listen(listener.descriptor_.get(), kBacklog) == 0) {
    return listener;
  }
  return Status::Error(StatusCode::kResourceExhausted, "cannot listen on a socket: %s",
                       std::strerror(errno));
}

Result<Socket> Socket::Connect(const std::string& name) noexcept {
  ENGINE_ASSIGN_OR_RETURN(Socket connection, Make());
  sockaddr_un address;
  const socklen_t size = AbstractAddress(name, &address);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (connect(connection.descriptor_.get(), to, size) == 0) return connection;
  return Status::Error(StatusCode::kRendezvous, "%s", std::strerror(errno));
}

Result<Socket> Socket::Accept(kit::Clock::time_point deadline) noexcept {
  while (Readable(deadline)) {
    kit::UniqueFd connection(
        accept4(descriptor_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection && SameUser(connection.get())) return Socket(std::move(connection));
    if (!connection && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) return NoSocket();
  }
  return Status::Error(StatusCode::kTimeout, "no connection in time");
}

// The message holds a reference to what is attached until it is received or thrown away, so the
// sender may close its descriptor at once.
bool Socket::Send(const void* data, size_t size, int attached) const noexcept {
  iovec bytes{const_cast<void*>(data), size};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (attached >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof(room);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &attached, sizeof(int));
  }
  return sendmsg(descriptor_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(size);
}

// A message of another size, or one that was cut, is of nobody we know; a descriptor that came
// along is closed, so nobody can fill this process's table.
Socket::Outcome Socket::Receive(void* data, size_t size, kit::UniqueFd* attached) const noexcept {
  attached->Close();
  iovec bytes{data, size};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  const ssize_t got = recvmsg(descriptor_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Outcome::kNothing;
  const cmsghdr* const header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
    *attached = kit::UniqueFd(descriptor);
  }
  if (got == static_cast<ssize_t>(size) && !(message.msg_flags & MSG_TRUNC)) return Outcome::kGot;
  attached->Close();
  return Outcome::kBroken;
}

Status Socket::ReceiveBy(kit::Clock::time_point deadline, void* data, size_t size,
                         kit::UniqueFd* attached) const noexcept {
  while (Readable(deadline)) {
    const Outcome outcome = Receive(data, size, attached);
    if (outcome == Outcome::kGot) return {};
    if (outcome == Outcome::kBroken) {
      return Status::Error(StatusCode::kPeerLost, "the connection was closed");
    }
  }
  return Status::Error(StatusCode::kTimeout, "no answer in time");
}

// Seen at once, even while messages of the peer are left to read.
bool Socket::HungUp() const noexcept {
  pollfd state{descriptor_.get(), POLLRDHUP, 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

bool Socket::Readable(kit::Clock::time_point deadline) const noexcept {
  while (true) {
    pollfd state{descriptor_.get(), POLLIN, 0};
    const int ready = poll(
        &state, 1, static_cast<int>(std::min<int64_t>(kit::MillisecondsUntil(deadline), 60000)));
    if (ready > 0) return true;
    if (kit::Clock::now() >= deadline) return false;
  }
}

}  // namespace engine::shm
