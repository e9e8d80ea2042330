// Links over ZeroMQ sockets, and what happens to their connections.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "curve.h"
#include "engine/status.h"
#include "link.h"

namespace engine::zmq_ps {

// How soon a peer is noticed that has stopped without closing its connection.
struct Heartbeat {
  int interval_ms = 1000;
  int timeout_ms = 5000;
};

struct SocketSettings {
  int64_t max_message_bytes = 0;  // of one frame
  int buffer_bytes = 0;           // of the kernel, each way; 0: the system's choice
  int linger_ms = 200;
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

// From a worker to one server.
class DealerLink final : public Link {
 public:
  // `server_key` is empty for plain text. Throws zmq::error_t.
  DealerLink(::zmq::context_t& context, uint32_t worker, const std::string& endpoint,
             const std::string& server_key, const KeyPair& own, const SocketSettings& settings);

  bool Writable() override;
  SendResult Send(Message& message) override;
  bool Receive(Message* out) override;
  void* socket() override { return socket_.handle(); }
  ::zmq::socket_t& raw() { return socket_; }
  // Connects; after the monitor is attached, so that no event is missed.
  void Connect() { socket_.connect(endpoint_); }

 private:
  const std::string endpoint_;
  ::zmq::socket_t socket_;
};

// From a server to all its workers.
class RouterLink final : public Link {
 public:
  // `own` is empty for plain text. At most `window` messages wait per worker. Throws zmq::error_t.
  RouterLink(::zmq::context_t& context, uint32_t workers, const KeyPair& own, int window,
             const SocketSettings& settings);

  // Binds to "tcp://address:port" or "tcp://address:*"; the endpoint with the port that it got.
  std::string Bind(const std::string& endpoint);

  bool Writable() override { return true; }
  SendResult Send(Message& message) override;
  bool Receive(Message* out) override;
  void* socket() override { return socket_.handle(); }
  ::zmq::socket_t& raw() { return socket_; }

  // Messages that were thrown away because they are not from a worker, since the last call.
  uint64_t TakeStrangers() { return std::exchange(strangers_, 0); }

 private:
  std::optional<uint32_t> SenderOf(::zmq::message_t& id, ::zmq::message_t& header) const;

  const uint32_t workers_;
  const bool encrypted_;
  uint64_t strangers_ = 0;
  ::zmq::socket_t socket_;
};

// Whether only this host can reach `endpoint` ("tcp://127.0.0.1:5555", "tcp://[::1]:*").
bool IsLoopback(const std::string& endpoint);

}  // namespace engine::zmq_ps
