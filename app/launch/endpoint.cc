#include "app/launch/endpoint.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>
#include <vector>

#include "app/launch/deadlines.h"

namespace engine::launch {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr int kBacklog = 128;
constexpr auto kRetryPause = std::chrono::milliseconds(50);
constexpr auto kNamePause = std::chrono::milliseconds(500);  // all ranks ask the same name server

using Address = asio::generic::stream_protocol::endpoint;

sa_family_t FamilyOf(const Address& address) {
  return static_cast<sa_family_t>(address.protocol().family());
}

Result<std::vector<Address>> Resolve(const Endpoint& endpoint) {
  if (!endpoint.unix_name.empty()) {
    return std::vector<Address>{asio::local::stream_protocol::endpoint('\0' + endpoint.unix_name)};
  }
  asio::io_context context;
  boost::system::error_code error;
  const auto found =
      tcp::resolver(context).resolve(endpoint.host, endpoint.port, tcp::resolver::flags{}, error);
  if (error) {
    return Status::Error(StatusCode::kRendezvous, "cannot resolve host '%s': %s",
                         endpoint.host.c_str(), error.message().c_str());
  }
  std::vector<Address> addresses;
  for (const auto& entry : found) addresses.emplace_back(entry.endpoint());
  return addresses;
}

// Small messages at once, and a host that vanished is noticed after about 15 s.
void TuneTcp(int fd) {
  auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// Any user may bind or connect to an abstract name, so both sides look who the other is.
bool SameUser(int fd, sa_family_t family) {
  if (family != AF_UNIX) return true;
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// Whether `error` is one, and what to say then.
bool IsWantOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE;
}
Status WantOfDescriptors(const Endpoint& endpoint) {
  return Status::Error(StatusCode::kResourceExhausted,
                       "no descriptor is left for a socket at %s: raise the limit of open files of "
                       "this process (ulimit -n)",
                       endpoint.text.c_str());
}

// One attempt; an invalid descriptor with errno set when it failed. Linux bounds connect() by the
// time limit of sends.
kit::UniqueFd TryConnect(const Address& address, int timeout_ms) {
  const sa_family_t family = FamilyOf(address);
  kit::UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const suseconds_t limit_ms = std::max(timeout_ms, 1);  // 0 is no limit
  const timeval limit{.tv_sec = limit_ms / 1000, .tv_usec = limit_ms % 1000 * 1000};
  if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0) return {};
  if (connect(fd.get(), address.data(), static_cast<socklen_t>(address.size())) != 0) {
    if (errno == EINPROGRESS) errno = ETIMEDOUT;
    return {};
  }
  if (!SameUser(fd.get(), family)) {
    errno = EACCES;
    return {};
  }
  TuneTcp(fd.get());  // refused by Unix sockets, which need none of it
  return fd;
}

}  // namespace

bool ParseInt(std::string_view text, int low, int high, int* out) {
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && parsed == end && *out >= low && *out <= high;
}

Result<Endpoint> ParseEndpoint(std::string_view text) {
  Endpoint endpoint{.text = std::string(text)};
  const size_t colon = std::min(text.rfind(':'), text.size());
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(std::min(colon + 1, text.size()));
  const bool v6 = host.starts_with('[') && host.ends_with(']');
  if (v6) host = host.substr(1, host.size() - 2);
  int number = 0;
  if (text.starts_with("unix:")) {
    endpoint.unix_name = text.substr(5);
    if (!endpoint.unix_name.empty() && endpoint.unix_name.size() <= kMaxUnixName) return endpoint;
  } else if (!host.empty() && (v6 || host.find(':') == host.npos) &&
             ParseInt(port, 1, 65535, &number)) {
    endpoint.host = host;
    endpoint.port = port;
    return endpoint;
  }
  return Status::Error(StatusCode::kInvalidArgument,
                       "rendezvous '%s' is no address: expected HOST:PORT with a port in 1 to "
                       "65535 and an IPv6 address in brackets, for example node1:29500 or "
                       "[fe80::1]:29500",
                       endpoint.text.c_str());
}

Result<bool> IsLoopback(const Endpoint& endpoint) {
  ENGINE_ASSIGN_OR_RETURN(std::vector<Address> addresses, Resolve(endpoint));
  return std::ranges::all_of(addresses, [](const Address& address) {
    tcp::endpoint over_tcp;
    if (FamilyOf(address) == AF_UNIX) return true;
    std::memcpy(over_tcp.data(), address.data(), address.size());
    return over_tcp.address().is_loopback();
  });
}

std::string PeerAddress(const kit::UniqueFd& socket) {
  tcp::endpoint peer;
  socklen_t size = static_cast<socklen_t>(peer.capacity());
  if (getpeername(socket.get(), peer.data(), &size) != 0) return "an unknown address";
  if (peer.data()->sa_family == AF_UNIX) return "a process of this host";
  std::ostringstream text;
  text << peer;
  return text.str();
}

Result<kit::UniqueFd> ListenAt(const Endpoint& endpoint, const EndpointLabels& labels) {
  ENGINE_ASSIGN_OR_RETURN(std::vector<Address> addresses, Resolve(endpoint));
  int error = 0;
  for (const Address& address : addresses) {
    kit::UniqueFd fd(socket(FamilyOf(address), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    // The option is for TCP; of Unix sockets it means nothing.
    if (fd && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(fd.get(), address.data(), static_cast<socklen_t>(address.size())) == 0 &&
        listen(fd.get(), kBacklog) == 0) {
      return fd;
    }
    error = errno;
  }
  if (IsWantOfDescriptors(error)) return WantOfDescriptors(endpoint);
  std::string advice = std::string("choose another address with ").append(labels.flag);
  if (error == EADDRINUSE) advice = "another run or program uses it: choose another port";
  if (error == EADDRNOTAVAIL) {
    advice =
        std::string(labels.listener).append(" serves the rendezvous and must run on that host");
  }
  return Status::Error(StatusCode::kRendezvous, "%s cannot listen at %s: %s; %s", labels.listener,
                       endpoint.text.c_str(), strerror(error), advice.c_str());
}

kit::UniqueFd AcceptFrom(const kit::UniqueFd& listener) {
  for (;;) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    kit::UniqueFd fd(accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                             SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd && !SameUser(fd.get(), peer.ss_family)) continue;
    if (fd) TuneTcp(fd.get());
    return fd;
  }
}

Status AwaitName(const Endpoint& endpoint, base::TimePoint deadline) {
  for (;;) {
    const Status status = Resolve(endpoint).status();
    if (status.ok() || base::Passed(deadline)) return status;
    std::this_thread::sleep_for(kNamePause);
  }
}

Result<kit::UniqueFd> ConnectTo(const Endpoint& endpoint, base::TimePoint deadline,
                                const base::AbortSignal& cancel, const EndpointLabels& labels) {
  Status last;
  do {
    if (cancel.raised()) return cancel.reason();
    Result<std::vector<Address>> addresses = Resolve(endpoint);
    if (!addresses.ok()) {
      last = addresses.status();
    } else {
      for (const Address& address : *addresses) {
        kit::UniqueFd fd = TryConnect(address, base::RemainingMs(deadline, kConnectAttemptMs));
        if (fd) return fd;
        if (IsWantOfDescriptors(errno)) return WantOfDescriptors(endpoint);
        last = Status::Error(StatusCode::kRendezvous, "%s", strerror(errno));
      }
    }
    std::this_thread::sleep_for(kRetryPause);
  } while (!base::Passed(deadline));
  return Status::Error(StatusCode::kRendezvous,
                       "found no %s at %s in time: %s; check that %s was started and that this "
                       "host can reach the address",
                       labels.listener, endpoint.text.c_str(), last.message(), labels.listener);
}

}  // namespace engine::launch
