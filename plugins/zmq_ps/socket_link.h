// Messages over ZeroMQ sockets, and what happens to their connections.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "flow.h"
#include "keys.h"
#include "wire.h"

namespace engine::zmq_ps {

// For tests: what becomes of a message that is about to be sent; null: whether one could be now.
enum class SendFault { kNone, kNoRoom, kLost };
using FaultInjector = std::function<SendFault(const Message* message)>;

inline constexpr int kMaxReceivesPerStep = 4;  // before others have their turn

// How soon a peer is noticed that has stopped without closing its connection.
struct Heartbeat {
  int interval_ms = 1000;
  int timeout_ms = 5000;
};

// Of all connections of a rank or a server.
struct ConnectionSettings {
  FlowSettings flow;
  Heartbeat heartbeat;
  int64_t lost_after_ms = 1000;  // for which a peer may be without a connection
  int io_threads = 1;            // of ZeroMQ
  FaultInjector faults;          // for tests; may be empty
};

// What a socket's monitor reports.
struct ConnectionEvent {
  enum class Kind { kAccepted, kUp, kDown, kRefused };
  Kind kind = Kind::kUp;  // kRefused: the key is wrong, and the end follows
  int descriptor = -1;    // kAccepted, kDown
};

// The events of one socket; polled beside it, used by the same thread.
class Monitor {
 public:
  Monitor(::zmq::context_t& context, ::zmq::socket_t& socket);
  void* socket() { return socket_.handle(); }
  // False when there is none now.
  bool Next(ConnectionEvent* out);

 private:
  ::zmq::socket_t socket_;
};

// Messages between one endpoint and its peers. Used by one thread; never blocks.
class Link {
 public:
  // The socket to poll.
  void* socket() { return socket_.handle(); }
  // Of all its connections.
  Monitor& monitor() { return monitor_; }

 protected:
  // Throws zmq::error_t.
  Link(::zmq::context_t& context, ::zmq::socket_type type, const ConnectionSettings& settings);
  // Before the monitor closes: a socket whose events nobody takes blocks its I/O thread.
  ~Link() { socket_.close(); }
  SendFault FaultOf(const Message* message) const {
    return faults_ ? faults_(message) : SendFault::kNone;
  }

  ::zmq::socket_t socket_;

 private:
  const FaultInjector faults_;
  Monitor monitor_;
};

// From a rank to one server.
class DealerLink final : public Link {
 public:
  // Connects. `server_key` is empty for plain text: `own` is the password then. Throws
  // zmq::error_t.
  DealerLink(::zmq::context_t& context, uint32_t worker, const std::string& endpoint,
             const std::string& server_key, const KeyPair& own, const ConnectionSettings& settings);

  // Whether Send may succeed now, for all a link knows.
  bool Writable();
  // Takes the frames, or leaves them alone and returns false: there is no room or no connection
  // now.
  bool Send(Message& message);
  // False when there is nothing now.
  bool Receive(Message* out);
};

// From a server to all its ranks.
class RouterLink final : public Link {
 public:
  // `secret_key` is empty for plain text. The context has an Authenticator. At most `window`
  // messages wait per rank. Throws zmq::error_t.
  RouterLink(::zmq::context_t& context, uint32_t workers, const std::string& secret_key, int window,
             const ConnectionSettings& settings);

  // Binds to "tcp://address:port" or "tcp://address:*"; the endpoint with the port that it got.
  std::string Bind(const std::string& endpoint);

  // As those of DealerLink, with the rank in the message.
  bool Send(Message& message);
  bool Receive(Message* out);

 private:
  std::optional<uint32_t> SenderOf(::zmq::message_t& id, ::zmq::message_t& header) const;

  const uint32_t workers_;
};

// Whether only this host can reach `endpoint` ("tcp://127.0.0.1:5555", "tcp://[::1]:*").
bool IsLoopback(const std::string& endpoint);

}  // namespace engine::zmq_ps
