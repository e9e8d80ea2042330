// Messages over ZeroMQ sockets, and what happens to their connections.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "curve.h"
#include "flow.h"
#include "wire.h"

namespace engine::zmq_ps {

// Messages between one endpoint and its peers: the seam between sockets and the protocol, at which
// tests put faults. Used by one thread; never blocks.
class Link {
 public:
  virtual ~Link() = default;

  // Whether Send may succeed now, for all a link knows.
  virtual bool Writable() = 0;
  // Takes the frames, or leaves them alone and returns false: there is no room or no connection now.
  virtual bool Send(Message& message) = 0;
  // False when there is nothing now.
  virtual bool Receive(Message* out) = 0;
  // The socket to poll.
  virtual void* socket() = 0;
};

using LinkWrapper = std::function<std::unique_ptr<Link>(std::unique_ptr<Link>)>;

// How soon a peer is noticed that has stopped without closing its connection.
struct Heartbeat {
  int interval_ms = 1000;
  int timeout_ms = 5000;
};

struct SocketSettings {
  FlowSettings flow;
  Heartbeat heartbeat;
};

// What a socket's monitor reports.
struct ConnectionEvent {
  enum class Kind { kAccepted, kUp, kDown, kRefused };
  Kind kind = Kind::kUp;
  int descriptor = -1;  // kAccepted, kDown
};

// The events of one socket; polled beside it, used by the same thread.
class Monitor {
 public:
  Monitor(::zmq::context_t& context, ::zmq::socket_t& socket, const std::string& name);
  void* socket() { return socket_.handle(); }
  // False when there is none now.
  bool Next(ConnectionEvent* out);

 private:
  ::zmq::socket_t socket_;
};

// From a rank to one server.
class DealerLink final : public Link {
 public:
  // `server_key` is empty for plain text. Throws zmq::error_t.
  DealerLink(::zmq::context_t& context, uint32_t worker, const std::string& endpoint,
             const std::string& server_key, const KeyPair& own, const SocketSettings& settings);

  bool Writable() override;
  bool Send(Message& message) override;
  bool Receive(Message* out) override;
  void* socket() override { return socket_.handle(); }
  ::zmq::socket_t& raw() { return socket_; }
  // Connects; after the monitor is attached, so that no event is missed.
  void Connect() { socket_.connect(endpoint_); }

 private:
  const std::string endpoint_;
  ::zmq::socket_t socket_;
};

// From a server to all its ranks.
class RouterLink final : public Link {
 public:
  // `own` is empty for plain text. At most `window` messages wait per rank. Throws zmq::error_t.
  RouterLink(::zmq::context_t& context, uint32_t workers, const KeyPair& own, int window,
             const SocketSettings& settings);

  // Binds to "tcp://address:port" or "tcp://address:*"; the endpoint with the port that it got.
  std::string Bind(const std::string& endpoint);

  bool Writable() override { return true; }
  bool Send(Message& message) override;
  bool Receive(Message* out) override;
  void* socket() override { return socket_.handle(); }
  ::zmq::socket_t& raw() { return socket_; }

  // Messages that were dropped because they are not from a rank, since the last call.
  uint64_t TakeDropped() { return std::exchange(dropped_, 0); }

 private:
  std::optional<uint32_t> SenderOf(::zmq::message_t& id, ::zmq::message_t& header) const;

  const uint32_t workers_;
  const bool encrypted_;
  uint64_t dropped_ = 0;
  ::zmq::socket_t socket_;
};

// Whether only this host can reach `endpoint` ("tcp://127.0.0.1:5555", "tcp://[::1]:*").
bool IsLoopback(const std::string& endpoint);

}  // namespace engine::zmq_ps
