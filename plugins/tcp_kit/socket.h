// What is asked of TCP sockets. Functions that return int give 0 or an
// errno; the end of a connection is ECONNRESET.
#pragma once

#include <sys/uio.h>

#include <span>
#include <string>

#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::tcp {

struct SocketSettings {
  std::string congestion_control;  // the kernel's; empty: the host's choice stays
  bool congestion_control_required = false;
  int send_buffer_bytes = 0;  // what it must take without a wait; 0: the kernel decides
};

// Where a rank listens; numeric, as it is published.
struct Endpoint {
  std::string address;
  std::string port;
  bool loopback = false;
};

// kResourceExhausted: `error` is EMFILE or the like.
Status NoDescriptor(const char* what, int error) noexcept;

// A socket that listens on the first usable address of the network interface, else of the host
// name; both empty: on loopback where `one_host` has all members, else by the name of this host.
// What Prepare sets is inherited by the connections that it accepts. Reads of it do not block.
// kConfig names the options of `plugin`: there is no such address, or other hosts cannot reach it.
Result<kit::UniqueFd> Listen(const std::string& interface, const std::string& hostname,
                             bool one_host, const char* plugin, Endpoint* endpoint);

// No delay of small messages, and `settings`. kConfig when the kernel does not allow them.
Status Prepare(const kit::UniqueFd& socket, const SocketSettings& settings);

// Connects a new, prepared, blocking socket; `stop` becomes readable to end the wait (ECANCELED).
int Connect(const Endpoint& peer, const SocketSettings& settings, const kit::UniqueFd& stop,
            kit::UniqueFd* socket);

// Waits until `socket` has one of `events` or an error, or `stop` is readable.
int WaitFor(const kit::UniqueFd& socket, short events, const kit::UniqueFd& stop);

// The bytes of all pieces; takes `bytes` off the front.
size_t Total(std::span<const iovec> pieces) noexcept;
void Advance(std::span<iovec> pieces, size_t bytes) noexcept;

// Writes all pieces. A broken connection raises no signal.
int Send(int fd, std::span<iovec> pieces) noexcept;

// Fills the pieces in order until at least `least` bytes are there; they become what is missing.
int Receive(int fd, std::span<iovec> pieces, size_t least) noexcept;

}  // namespace engine::tcp
