// Where ranks meet: "HOST:PORT" (TCP) or "unix:NAME" (an abstract Unix socket of this host).
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/rank_context.h"
#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::launch {

inline constexpr size_t kMaxUnixName = 100;

struct Endpoint {
  std::string text;  // as the user wrote it
  std::string host;  // TCP
  std::string port;
  std::string unix_name;  // abstract, without the leading zero byte; empty for TCP
};

// Whether `text` is a whole number in [low, high], and which.
bool ParseInt(std::string_view text, int low, int high, int* out);

// IPv6 addresses in brackets: "[::1]:29500". kInvalidArgument.
Result<Endpoint> ParseEndpoint(std::string_view text);

// Whether every address that the host resolves to is of this host alone. kRendezvous when it cannot
// be resolved.
Result<bool> IsLoopback(const Endpoint& endpoint);

// Whether the host is a name that stands for this host alone here, though perhaps not elsewhere: by Debian's
// default /etc/hosts gives a host's own name an address of the loopback interface. kRendezvous.
Result<bool> IsOwnName(const Endpoint& endpoint);

// Who looks for whom, for messages.
struct EndpointLabels {
  const char* listener = "rank 0";
  const char* flag = "--rendezvous";
};

// Binds the address that the host resolves to and no other interface. kRendezvous.
Result<kit::UniqueFd> ListenAt(const Endpoint& endpoint, const EndpointLabels& labels = {});

// An end of a connection: getpeername or getsockname.
using WhichEnd = int (*)(int, sockaddr*, socklen_t*);
// "10.0.0.7:41234", for messages; "a process of this host" of a Unix socket.
std::string EndText(const kit::UniqueFd& socket, WhichEnd end);
// Its numeric address; empty of loopback and Unix sockets, whose ends are both on this host.
std::string NetworkAddress(const kit::UniqueFd& socket, WhichEnd end);

// An address "10.0.0.7:41234" of `host` that was free just now. kRendezvous.
Result<std::string> FreeAddress(const std::string& host);

// The next waiting connection, an invalid descriptor when there is none. A peer of another user
// on a Unix socket is turned away.
kit::UniqueFd AcceptFrom(const kit::UniqueFd& listener);

// Waits until the host can be resolved; kRendezvous at the deadline.
Status AwaitName(const Endpoint& endpoint, base::TimePoint deadline);

// Tries again until the server is there; kRendezvous at the deadline, the reason of `cancel` once
// that is raised.
Result<kit::UniqueFd> ConnectTo(const Endpoint& endpoint, base::TimePoint deadline,
                                const base::AbortSignal& cancel, const EndpointLabels& labels = {});

}  // namespace engine::launch
