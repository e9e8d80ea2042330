// Keys of a run (CurveZMQ, rfc.zeromq.org/spec/26) and the gate that lets in only these (ZAP,
// rfc.zeromq.org/spec/27).
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "engine/status.h"

namespace engine::zmq_ps {

// In Z85, 40 characters each. Empty: plain text.
struct KeyPair {
  std::string public_key;
  std::string secret_key;  // never leaves the process that made it

  static Result<KeyPair> Make();
};

// Answers the questions of all sockets of a context that have a ZAP domain, until the context is
// shut down: a client is let in if its key is in the list, as the user "<position in the list>".
class Gate {
 public:
  // Ready when the constructor returns. Throws zmq::error_t.
  Gate(::zmq::context_t& context, std::vector<std::string> client_keys);
  ~Gate();  // shuts the context down

 private:
  void Loop() noexcept;
  void Answer();

  ::zmq::context_t& context_;
  const std::vector<std::string> client_keys_;
  ::zmq::socket_t socket_;
  std::thread thread_;
};

}  // namespace engine::zmq_ps
