// Where ranks meet: "HOST:PORT" (TCP) or "unix:NAME" (an abstract Unix socket of this host).
#pragma once

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

// Who looks for whom, for messages.
struct EndpointLabels {
  const char* listener = "rank 0";
  const char* flag = "--rendezvous";
};

// Binds the address that the host resolves to and no other interface. kRendezvous.
Result<kit::UniqueFd> ListenAt(const Endpoint& endpoint, const EndpointLabels& labels = {});

// "10.0.0.7:41234", for messages; "a process of this host" of a Unix socket.
std::string PeerAddress(const kit::UniqueFd& socket);

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
