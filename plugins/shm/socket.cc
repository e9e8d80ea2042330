#include "socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "clock.h"

namespace engine::shm {
namespace {

constexpr int kBacklog = 1024;

socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) noexcept {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Result<Socket> Make() noexcept {
  const int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor >= 0) return Socket(descriptor);
  return Status::Error(StatusCode::kResourceExhausted, "no socket: %s", std::strerror(errno));
}

bool SameUser(int descriptor) noexcept {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == geteuid();
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Result<Socket> Socket::Listen(const std::string& name) noexcept {
  ENGINE_ASSIGN_OR_RETURN(Socket listener, Make());
  sockaddr_un address;
  const socklen_t size = AbstractAddress(name, &address);
  if (bind(listener.descriptor_, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
      listen(listener.descriptor_, kBacklog) == 0) {
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
  if (connect(connection.descriptor_, to, size) == 0) return connection;
  return Status::Error(StatusCode::kRendezvous, "%s", std::strerror(errno));
}

Result<Socket> Socket::Accept(int64_t deadline_ns) noexcept {
  while (Readable(deadline_ns)) {
    Socket connection(accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.descriptor_ >= 0 && SameUser(connection.descriptor_)) return connection;
  }
  return Status::Error(StatusCode::kTimeout, "no connection in time");
}

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
  return sendmsg(descriptor_, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

Socket::Outcome Socket::Receive(void* data, size_t size, int* attached) const noexcept {
  *attached = -1;
  iovec bytes{data, size};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  const ssize_t got = recvmsg(descriptor_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Outcome::kNothing;
  const cmsghdr* const header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(attached, CMSG_DATA(header), sizeof(int));
  }
  if (got == static_cast<ssize_t>(size) && !(message.msg_flags & MSG_TRUNC)) return Outcome::kGot;
  if (*attached >= 0) close(std::exchange(*attached, -1));
  return Outcome::kBroken;
}

Status Socket::ReceiveBy(int64_t deadline_ns, void* data, size_t size,
                         int* attached) const noexcept {
  *attached = -1;
  while (Readable(deadline_ns)) {
    const Outcome outcome = Receive(data, size, attached);
    if (outcome == Outcome::kGot) return {};
    if (outcome == Outcome::kBroken) {
      return Status::Error(StatusCode::kPeerLost, "the connection was closed");
    }
  }
  return Status::Error(StatusCode::kTimeout, "no answer in time");
}

bool Socket::HungUp() const noexcept {
  pollfd state{descriptor_, POLLRDHUP, 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

bool Socket::Readable(int64_t deadline_ns) const noexcept {
  while (true) {
    pollfd state{descriptor_, POLLIN, 0};
    const int ready =
        poll(&state, 1, static_cast<int>(std::min<int64_t>(MsUntil(deadline_ns), 60000)));
    if (ready > 0) return true;
    if (NowNs() >= deadline_ns) return false;
  }
}

}  // namespace engine::shm
