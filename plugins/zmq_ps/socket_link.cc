// Options that the protocol relies on:
//
//   immediate          DEALER: nothing is queued while there is no connection, so a full link and no
//                      link look alike, and a message that was taken was meant for a connection
//   router_mandatory   ROUTER: a message to nobody fails instead of vanishing
//   router_handover    ROUTER: a rank that connects again takes its address over at once
//   maxmsgsize         a frame that says it is longer closes its connection before memory is taken
//   sndhwm             few messages inside of ZeroMQ, which knows no priorities
//   rcvhwm             none: libzmq 4.3.4 aborts when a peer closes while its input is stopped by that
//                      mark and a heartbeat is due (stream_engine_base.cpp, out_event), and a pong
//                      behind it is not heard. What a rank sends is kept by the server anyway
//   tcp_maxrt          a peer that has stopped and takes no more bytes: no heartbeat passes these
#include "socket_link.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace engine::zmq_ps {
namespace {

constexpr int kHandshakeMs = 5000;
constexpr int kLingerMs = 200;
constexpr int64_t kCurveBytes =
    64;                         // more in a frame that is encrypted: command, nonce, MAC, flags
constexpr int kMinTtlMs = 100;  // ZeroMQ counts in tenths of a second here
constexpr int kReconnectMs = 50;
constexpr int kReconnectMaxMs = 500;
// Pending connections that the kernel keeps for a server: with few, connections of others delay a
// rank by seconds.
constexpr int kBacklog = 4096;

// A rank's address at a server: four bytes, which no id that ZeroMQ makes up has.
std::string IdOf(uint32_t worker) {
  return {'w', static_cast<char>(worker >> 16 & 0xff), static_cast<char>(worker >> 8 & 0xff),
          static_cast<char>(worker & 0xff)};
}

std::optional<uint32_t> WorkerOf(const ::zmq::message_t& id) {
  const auto* const bytes = static_cast<const uint8_t*>(id.data());
  if (id.size() != 4 || bytes[0] != 'w') return std::nullopt;
  return uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

// Not always on: an IPv4 address would become one of IPv6.
bool IsIpv6(const std::string& endpoint) {
  return endpoint.find('[') != std::string::npos;
}

bool ReceiveFrame(::zmq::socket_t& socket, ::zmq::message_t* out) {
  return socket.recv(*out, ::zmq::recv_flags::dontwait).has_value();
}

// The frames after the header, which are there already: ZeroMQ delivers messages as a whole. False
// when there are more than ours have; they are dropped.
bool ReceiveRest(::zmq::socket_t& socket, Message* out) {
  out->body.rebuild();
  out->rows.rebuild();
  bool more = out->header.more();
  if (more && ReceiveFrame(socket, &out->body)) more = out->body.more();
  if (more && ReceiveFrame(socket, &out->rows)) more = out->rows.more();
  const bool whole = !more;
  for (::zmq::message_t excess; more && ReceiveFrame(socket, &excess);) more = excess.more();
  return whole;
}

// ZeroMQ takes all frames of a message or none, so after the first one these do not fail.
void SendFrames(::zmq::socket_t& socket, Message& message) {
  using ::zmq::send_flags;
  const send_flags last = send_flags::dontwait, more = send_flags::sndmore | send_flags::dontwait;
  const bool has_rows = message.rows.size() > 0, has_body = has_rows || message.body.size() > 0;
  (void)socket.send(message.header, has_body ? more : last);
  if (has_body) (void)socket.send(message.body, has_rows ? more : last);
  if (has_rows) (void)socket.send(message.rows, last);
}

}  // namespace

// The address of the socket tells monitors of a context apart.
Monitor::Monitor(::zmq::context_t& context, ::zmq::socket_t& socket) : socket_(context, ZMQ_PAIR) {
  const std::string endpoint =
      "inproc://" + std::to_string(reinterpret_cast<uintptr_t>(socket.handle()));
  const int events = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  if (zmq_socket_monitor(socket.handle(), endpoint.c_str(), events) != 0) throw ::zmq::error_t();
  socket_.set(::zmq::sockopt::linger, 0);
  socket_.connect(endpoint);
}

// event := id(u16) value(i32), native byte order; then the endpoint in a frame of its own.
bool Monitor::Next(ConnectionEvent* out) {
  ::zmq::message_t event, endpoint;
  if (!ReceiveFrame(socket_, &event)) return false;
  if (event.more()) ReceiveFrame(socket_, &endpoint);
  if (event.size() < 6) return false;
  uint16_t id = 0;
  int32_t value = 0;
  std::memcpy(&id, event.data(), sizeof(id));
  std::memcpy(&value, static_cast<const char*>(event.data()) + sizeof(id), sizeof(value));
  using Kind = ConnectionEvent::Kind;
  *out = {id == ZMQ_EVENT_ACCEPTED              ? Kind::kAccepted
          : id == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? Kind::kUp
          : id == ZMQ_EVENT_DISCONNECTED        ? Kind::kDown
                                                : Kind::kRefused,
          value};
  return true;
}

// Frames of unknown peers are bounded by maxmsgsize before ZeroMQ takes memory for them.
Link::Link(::zmq::context_t& context, ::zmq::socket_type type, const ConnectionSettings& settings)
    : socket_(context, type), faults_(settings.faults), monitor_(context, socket_) {
  const int timeout_ms = settings.heartbeat.timeout_ms;
  socket_.set(::zmq::sockopt::linger, kLingerMs);
  socket_.set(::zmq::sockopt::maxmsgsize,
              kCurveBytes + std::max(static_cast<int64_t>(settings.flow.slice_bytes),
                                     static_cast<int64_t>(kMaxListBytes)));
  socket_.set(::zmq::sockopt::rcvhwm, 0);
  socket_.set(::zmq::sockopt::handshake_ivl, kHandshakeMs);
  socket_.set(::zmq::sockopt::heartbeat_ivl, settings.heartbeat.interval_ms);
  socket_.set(::zmq::sockopt::heartbeat_timeout, timeout_ms);
  socket_.set(::zmq::sockopt::heartbeat_ttl, std::max(timeout_ms, kMinTtlMs));
  socket_.set(::zmq::sockopt::tcp_maxrt, timeout_ms);
  if (settings.flow.buffer_bytes > 0) {
    socket_.set(::zmq::sockopt::sndbuf, settings.flow.buffer_bytes);
    socket_.set(::zmq::sockopt::rcvbuf, settings.flow.buffer_bytes);
  }
}

DealerLink::DealerLink(::zmq::context_t& context, uint32_t worker, const std::string& endpoint,
                       const std::string& server_key, const KeyPair& own,
                       const ConnectionSettings& settings)
    : Link(context, ::zmq::socket_type::dealer, settings) {
  socket_.set(::zmq::sockopt::sndhwm, FlowSettings::kMostAhead);
  socket_.set(::zmq::sockopt::immediate, true);
  socket_.set(::zmq::sockopt::reconnect_ivl, kReconnectMs);
  socket_.set(::zmq::sockopt::reconnect_ivl_max, kReconnectMaxMs);
  socket_.set(::zmq::sockopt::routing_id, IdOf(worker));
  socket_.set(::zmq::sockopt::ipv6, IsIpv6(endpoint));
  if (server_key.empty()) {
    socket_.set(::zmq::sockopt::plain_username, IdOf(worker));
    socket_.set(::zmq::sockopt::plain_password, own.public_key);
  } else {
    socket_.set(::zmq::sockopt::curve_serverkey, server_key);
    socket_.set(::zmq::sockopt::curve_publickey, own.public_key);
    socket_.set(::zmq::sockopt::curve_secretkey, own.secret_key);
  }
  socket_.connect(endpoint);
}

bool DealerLink::Writable() {
  return FaultOf(nullptr) != SendFault::kNoRoom && (EventsOf(socket()) & ZMQ_POLLOUT) != 0;
}

bool DealerLink::Send(Message& message) {
  if (!Writable()) return false;
  if (FaultOf(&message) != SendFault::kLost) SendFrames(socket_, message);
  return true;
}

bool DealerLink::Receive(Message* out) {
  while (ReceiveFrame(socket_, &out->header)) {
    if (ReceiveRest(socket_, out)) return true;
  }
  return false;
}

RouterLink::RouterLink(::zmq::context_t& context, uint32_t workers, const std::string& secret_key,
                       int window, const ConnectionSettings& settings)
    : Link(context, ::zmq::socket_type::router, settings), workers_(workers) {
  socket_.set(::zmq::sockopt::sndhwm, window);
  socket_.set(::zmq::sockopt::router_mandatory, true);
  socket_.set(::zmq::sockopt::backlog, kBacklog);
  socket_.set(::zmq::sockopt::router_handover, true);  // a rank that reconnects
  socket_.set(::zmq::sockopt::zap_domain, "zmq_ps");
  if (secret_key.empty()) {
    socket_.set(::zmq::sockopt::plain_server, true);
  } else {
    socket_.set(::zmq::sockopt::curve_server, true);
    socket_.set(::zmq::sockopt::curve_secretkey, secret_key);
  }
}

std::string RouterLink::Bind(const std::string& endpoint) {
  socket_.set(::zmq::sockopt::ipv6, IsIpv6(endpoint));
  socket_.bind(endpoint);
  return socket_.get(::zmq::sockopt::last_endpoint);
}

bool RouterLink::Send(Message& message) {
  if (FaultOf(&message) == SendFault::kNoRoom) return false;
  const std::string id = IdOf(message.peer);
  try {
    const auto sent =
        socket_.send(::zmq::buffer(id), ::zmq::send_flags::sndmore | ::zmq::send_flags::dontwait);
    if (!sent) return false;
  } catch (const ::zmq::error_t& error) {
    if (error.num() == EHOSTUNREACH) return false;
    throw;
  }
  SendFrames(socket_, message);
  return true;
}

// message := id header [body [rows]]; ZeroMQ puts the id of the sender in front.
bool RouterLink::Receive(Message* out) {
  for (::zmq::message_t id; ReceiveFrame(socket_, &id);) {
    if (!id.more() || !ReceiveFrame(socket_, &out->header) || !ReceiveRest(socket_, out)) continue;
    const std::optional<uint32_t> sender = SenderOf(id, out->header);
    if (!sender) continue;
    out->peer = *sender;
    out->descriptor = zmq_msg_get(out->header.handle(), ZMQ_SRCFD);
    return true;
  }
  return false;
}

// An address is worth as much as the key that it came with: see keys.h.
std::optional<uint32_t> RouterLink::SenderOf(::zmq::message_t& id, ::zmq::message_t& header) const {
  const std::optional<uint32_t> worker = WorkerOf(id);
  if (!worker || *worker >= workers_) return std::nullopt;
  const char* const user = zmq_msg_gets(header.handle(), "User-Id");
  if (!user || std::to_string(*worker) != user) return std::nullopt;
  return worker;
}

bool IsLoopback(const std::string& endpoint) {
  constexpr std::string_view kScheme = "tcp://";
  if (!endpoint.starts_with(kScheme)) return false;
  const std::string_view address = std::string_view(endpoint).substr(kScheme.size());
  return address.starts_with("127.") || address.starts_with("[::1]:");
}

}  // namespace engine::zmq_ps
