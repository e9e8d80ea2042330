#include "connection.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace star_comm {
namespace {

using engine::Result;
using engine::Status;
using engine::StatusCode;

Status SocketError(const char* what) noexcept {
  return Status::Error(StatusCode::kRendezvous, "%s: %s", what, std::strerror(errno));
}

// Waits until `fd` is ready for `events` or its peer is gone, and returns which of these it is; 0
// when the deadline has passed.
short WaitFor(int fd, short events, Deadline deadline) noexcept {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd poll_fd{.fd = fd, .events = events, .revents = 0};
    const int ready =
        poll(&poll_fd, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000)));
    if (ready > 0) return poll_fd.revents;
    if (left.count() <= 0) return 0;
  }
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Connection::Connection(Socket socket) noexcept : socket_(std::move(socket)) {
  const int on = 1;
  setsockopt(socket_.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Status Connection::Send(const void* data, size_t size_bytes, Deadline deadline) noexcept {
  const auto* next = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t sent = send(socket_.fd(), next, size_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      next += sent;
      size_bytes -= static_cast<size_t>(sent);
      continue;
    }
    // A peer that reads no more would let a sender wait for ever.
    const bool retry = errno == EAGAIN || errno == EINTR;
    const short ready = retry ? WaitFor(socket_.fd(), POLLOUT | POLLRDHUP, deadline) : POLLERR;
    if (ready == 0) {
      return Status::Error(StatusCode::kTimeout, "rank %d takes no data", peer_).WithRank(peer_);
    }
    if ((ready & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
      return Status::Error(StatusCode::kPeerLost, "rank %d takes no more data", peer_)
          .WithRank(peer_);
    }
  }
  return {};
}

Status Connection::Receive(void* data, size_t size_bytes, Deadline deadline) noexcept {
  auto* next = static_cast<char*>(data);
  while (size_bytes > 0) {
    const ssize_t received = recv(socket_.fd(), next, size_bytes, MSG_DONTWAIT);
    if (received > 0) {
      next += received;
      size_bytes -= static_cast<size_t>(received);
    } else if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (WaitFor(socket_.fd(), POLLIN, deadline) == 0) {
        return Status::Error(StatusCode::kTimeout, "no data came from rank %d", peer_)
            .WithRank(peer_);
      }
    } else {
      return Status::Error(StatusCode::kPeerLost, "rank %d closed its connection", peer_)
          .WithRank(peer_);
    }
  }
  return {};
}

void Connection::Shutdown() noexcept {
  if (socket_.fd() >= 0) shutdown(socket_.fd(), SHUT_RDWR);
}

Result<Socket> Listen(const char* address, sockaddr_in* bound) noexcept {
  *bound = {};
  bound->sin_family = AF_INET;
  if (inet_pton(AF_INET, address, &bound->sin_addr) != 1) {
    return Status::Error(StatusCode::kConfig, "'%s' is not a numeric IPv4 address", address);
  }
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t size = sizeof(*bound);
  auto* any = reinterpret_cast<sockaddr*>(bound);
  if (listener.fd() < 0 || bind(listener.fd(), any, size) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0 || getsockname(listener.fd(), any, &size) != 0) {
    return SocketError("cannot listen");
  }
  return listener;
}

Result<Socket> Accept(const Socket& listener, Deadline deadline) noexcept {
  if (WaitFor(listener.fd(), POLLIN, deadline) == 0) {
    return Status::Error(StatusCode::kTimeout, "nobody connects");
  }
  Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.fd() < 0) return SocketError("cannot accept a connection");
  return socket;
}

Result<Socket> Connect(const sockaddr_in& address) noexcept {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0 ||
      connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SocketError("cannot connect to rank 0");
  }
  return socket;
}

}  // namespace star_comm
