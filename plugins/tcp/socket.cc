#include "socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>

namespace engine::tcp {
namespace {

bool SameEndpoint(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET) {
    const auto& x = reinterpret_cast<const sockaddr_in&>(a);
    const auto& y = reinterpret_cast<const sockaddr_in&>(b);
    return x.sin_port == y.sin_port && x.sin_addr.s_addr == y.sin_addr.s_addr;
  }
  const auto& x = reinterpret_cast<const sockaddr_in6&>(a);
  const auto& y = reinterpret_cast<const sockaddr_in6&>(b);
  return x.sin6_port == y.sin6_port &&
         std::memcmp(&x.sin6_addr, &y.sin6_addr, sizeof(x.sin6_addr)) == 0;
}

using GetName = int (*)(int, sockaddr*, socklen_t*);

// Descriptors without such a name, files among them, equal nothing.
bool NameEquals(GetName get, int fd, const sockaddr_storage& expected) {
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  return get(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 && SameEndpoint(name, expected);
}

bool IsConnected(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  return getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0;
}

// The side that accepted is known by its own port, which it alone has. The side that connected may
// share its port with a connection to somewhere else, but it is connected to the published address.
int FindConnection(const sockaddr_storage& local, const sockaddr_storage& published) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  int found = -1;
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    char* end = nullptr;
    const int fd = static_cast<int>(std::strtol(entry->d_name, &end, 10));
    if (end == entry->d_name || !NameEquals(getsockname, fd, local) || !IsConnected(fd)) continue;
    if (NameEquals(getpeername, fd, published)) return fd;
    found = fd;
  }
  return found;
}

}  // namespace

SocketHandle::~SocketHandle() {
  if (fd_ >= 0) close(fd_);
}

Result<SocketHandle> SocketHandle::Of(const ::gloo::transport::Pair& pair,
                                      const std::vector<char>& peer_address) {
  using ::gloo::transport::tcp::Address;
  if (const auto* local = dynamic_cast<const Address*>(&pair.address())) {
    const int fd = FindConnection(local->getSockaddr(), Address(peer_address).getSockaddr());
    const int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0) return SocketHandle(copy);
  }
  return Status::Error(StatusCode::kInternal,
                       "the socket of a connection was not found in /proc/self/fd");
}

void SocketHandle::RemoveTimeouts() const noexcept {
  const timeval never{};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof(never));
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &never, sizeof(never));
}

Status SocketHandle::SetCongestionControl(const std::string& name) const noexcept {
  if (setsockopt(fd_, IPPROTO_TCP, TCP_CONGESTION, name.c_str(),
                 static_cast<socklen_t>(name.size())) == 0) {
    return {};
  }
  return Status::Error(StatusCode::kConfig,
                       "the kernel does not let tcp use the congestion control '%s' (%s): set the "
                       "option congestion_control to one of "
                       "/proc/sys/net/ipv4/tcp_allowed_congestion_control, or leave it out",
                       name.c_str(), std::strerror(errno));
}

bool SocketHandle::ReserveSendBuffer(int bytes) const noexcept {
  setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  int granted = 0;
  socklen_t length = sizeof(granted);
  getsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &granted, &length);
  // The kernel grants twice what is asked for, for its own structures: see socket(7).
  return granted >= 2 * bytes;
}

void SocketHandle::Shutdown() const noexcept {
  shutdown(fd_, SHUT_RDWR);
}

ScopedIgnoreSigpipe::ScopedIgnoreSigpipe() noexcept {
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  was_blocked_ = sigismember(&before, SIGPIPE) == 1;
}

ScopedIgnoreSigpipe::~ScopedIgnoreSigpipe() {
  if (was_blocked_) return;
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec now{};
  while (sigtimedwait(&pipe, nullptr, &now) > 0) {
  }
  pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}

}  // namespace engine::tcp
