#include "tcp_kit/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

namespace engine::tcp {
namespace {

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Takes an address with port 0 and says whether it will do.
using TryAddress = std::function<bool(const sockaddr& address, socklen_t length)>;

// IPv4 before IPv6. Link-local addresses mean nothing to others.
bool TryInterface(const std::string& name, const TryAddress& attempt) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
      if (name != entry->ifa_name || !entry->ifa_addr || entry->ifa_addr->sa_family != family) {
        continue;
      }
      const bool v4 = family == AF_INET;
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      if (!v4 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
      if (attempt(*entry->ifa_addr, v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6))) return true;
    }
  }
  return false;
}

bool TryName(const std::string& name, const char* port, int flags, const TryAddress& attempt) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), port, &hints, &list) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    if (attempt(*entry->ai_addr, entry->ai_addrlen)) return true;
  }
  return false;
}

kit::UniqueFd NewSocket(int family) {
  return kit::UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Endpoint EndpointOf(const kit::UniqueFd& socket) {
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  char address[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  auto* const generic = reinterpret_cast<sockaddr*>(&name);
  getsockname(socket.get(), generic, &length);
  getnameinfo(generic, length, address, sizeof(address), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return {.address = address, .port = port, .loopback = IsLoopback(*generic)};
}

}  // namespace

Status NoDescriptor(const char* what, int error) noexcept {
  return Status::Error(StatusCode::kResourceExhausted, "no descriptor for %s (%s)", what,
                       std::strerror(error));
}

void Advance(std::span<iovec> pieces, size_t bytes) noexcept {
  for (iovec& piece : pieces) {
    const size_t step = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + step;
    piece.iov_len -= step;
    bytes -= step;
  }
}

size_t Total(std::span<const iovec> pieces) noexcept {
  size_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  return total;
}

Result<kit::UniqueFd> Listen(const std::string& interface, const std::string& hostname,
                             bool one_host, const char* plugin, Endpoint* endpoint) {
  char own_name[256] = "127.0.0.1";
  if (!one_host) gethostname(own_name, sizeof(own_name) - 1);
  const std::string name = hostname.empty() ? own_name : hostname;
  kit::UniqueFd listener;
  int error = 0;
  const auto attempt = [&](const sockaddr& address, socklen_t length) {
    kit::UniqueFd socket = NewSocket(address.sa_family);
    if (!socket) error = errno;
    if (bind(socket.get(), &address, length) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
      return false;
    }
    listener = std::move(socket);
    return true;
  };
  const bool found =
      interface.empty() ? TryName(name, "0", 0, attempt) : TryInterface(interface, attempt);
  if (!found && error != 0) return NoDescriptor("a socket that listens", error);
  if (!found) {
    return Status::Error(StatusCode::kConfig,
                         "no usable network address for interface '%s', hostname '%s': set the "
                         "option interface or hostname of %s",
                         interface.c_str(), name.c_str(), plugin);
  }
  *endpoint = EndpointOf(listener);
  if (one_host || !endpoint->loopback) return listener;
  return Status::Error(StatusCode::kConfig,
                       "other hosts cannot reach %s, which %s stands for here: set the option "
                       "interface or hostname of %s",
                       endpoint->address.c_str(), (interface.empty() ? name : interface).c_str(),
                       plugin);
}

// That a window fits into the send buffer is what tcp's channel.cc builds on when it says that
// nobody blocks in a write; hence an error and not a slower run.
Status Prepare(const kit::UniqueFd& socket, const SocketSettings& settings) {
  const int on = 1, window = settings.send_buffer_bytes;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (window > 0) setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &window, sizeof(window));
  int granted = 0;
  socklen_t length = sizeof(granted);
  getsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &granted, &length);
  // The kernel grants twice what is asked for, for its own structures: see socket(7).
  if (granted < 2 * window) {
    return Status::Error(StatusCode::kConfig,
                         "the kernel limits the send buffer of a socket: raise net.core.wmem_max "
                         "to at least %d",
                         window);
  }
  const std::string& name = settings.congestion_control;
  if (name.empty() ||
      setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.c_str(),
                 static_cast<socklen_t>(name.size())) == 0 ||
      !settings.congestion_control_required) {
    return {};
  }
  return Status::Error(StatusCode::kConfig,
                       "the kernel does not allow the congestion control '%s' (%s): set the "
                       "option congestion_control to one of "
                       "/proc/sys/net/ipv4/tcp_allowed_congestion_control, or leave it out",
                       name.c_str(), std::strerror(errno));
}

// Not blocking until it is connected: a host that is gone answers nothing, and `stop` must end that.
int Connect(const Endpoint& peer, const SocketSettings& settings, const kit::UniqueFd& stop,
            kit::UniqueFd* socket) {
  int error = EADDRNOTAVAIL;
  const auto attempt = [&](const sockaddr& address, socklen_t length) {
    *socket = NewSocket(address.sa_family);
    if (!*socket) error = errno;
    // The listener of this rank was prepared alike, so this has been seen to work.
    if (!*socket || !Prepare(*socket, settings).ok()) return false;
    error = connect(socket->get(), &address, length) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = WaitFor(*socket, POLLOUT, stop);
    socklen_t size = sizeof(error);
    if (error == 0) getsockopt(socket->get(), SOL_SOCKET, SO_ERROR, &error, &size);
    return true;
  };
  TryName(peer.address, peer.port.c_str(), AI_NUMERICHOST | AI_NUMERICSERV, attempt);
  if (error == 0) fcntl(socket->get(), F_SETFL, 0);  // blocking
  return error;
}

int WaitFor(const kit::UniqueFd& socket, short events, const kit::UniqueFd& stop) {
  pollfd entries[] = {{socket.get(), events, 0}, {stop.get(), POLLIN, 0}};
  while (poll(entries, 2, -1) < 0) {
    if (errno != EINTR) return errno;
  }
  return entries[1].revents != 0 ? ECANCELED : 0;
}

// Header and first part in one call, so that they leave in one packet if they fit.
int Send(int fd, std::span<iovec> pieces) noexcept {
  while (Total(pieces) > 0) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return errno;
    Advance(pieces, sent < 0 ? 0 : static_cast<size_t>(sent));
  }
  return 0;
}

// Where all of it is sure to come, the kernel waits for all (MSG_WAITALL) and one call is enough.
int Receive(int fd, std::span<iovec> pieces, size_t least) noexcept {
  const size_t wanted = Total(pieces);
  for (size_t left = wanted; wanted - left < least; left = Total(pieces)) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t received = recvmsg(fd, &message, least == wanted ? MSG_WAITALL : 0);
    if (received == 0) return ECONNRESET;
    if (received < 0 && errno != EINTR) return errno;
    Advance(pieces, received < 0 ? 0 : static_cast<size_t>(received));
  }
  return 0;
}

}  // namespace engine::tcp
