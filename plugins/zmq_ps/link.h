// Messages between one endpoint and its peers: the seam between sockets and the protocol. Tests put
// a link that loses, repeats and reorders messages around a real one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <zmq.hpp>

namespace engine::zmq_ps {

// Up to three frames: the header, tensor bytes, and the numbers of the rows that these are. Empty
// ones at the end are not sent.
struct Message {
  uint32_t peer = 0;    // worker; only of use to a server
  int descriptor = -1;  // of the connection it came by; -1: unknown
  ::zmq::message_t header;
  ::zmq::message_t body;
  ::zmq::message_t rows;  // int32, ascending
};

enum class SendResult {
  kSent,
  kFull,         // try again later; the message is untouched
  kUnreachable,  // there is no connection to the peer now; the message is untouched
};

// Used by one thread. Never blocks.
class Link {
 public:
  virtual ~Link() = default;

  // Whether Send may succeed now, for all a link knows.
  virtual bool Writable() = 0;
  // Takes the frames when it returns kSent.
  virtual SendResult Send(Message& message) = 0;
  // False when there is nothing now.
  virtual bool Receive(Message* out) = 0;
  // The socket to poll.
  virtual void* socket() = 0;
};

using LinkWrapper = std::function<std::unique_ptr<Link>(std::unique_ptr<Link>)>;

}  // namespace engine::zmq_ps
