// Keys of a run, and the authenticator that lets in only these (ZAP, rfc.zeromq.org/spec/27). Every
// rank proves its own to every server: the secret half by CURVE (rfc.zeromq.org/spec/26), or in
// plain text, on loopback, the public half as a password (rfc.zeromq.org/spec/24), since the store
// of the run shows it to members only.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "engine/status.h"
#include "kit/communicator.h"

namespace engine::zmq_ps {

// In Z85, 40 characters each.
struct KeyPair {
  std::string public_key;
  std::string secret_key;  // never leaves the process that made it

  static Result<KeyPair> Make();
};

// The newest public key of a client, by its position in the list; empty when it is that of the
// list.
using KeyLookup = std::function<std::string(uint32_t client)>;

// Answers the questions of all sockets of a context that have a ZAP domain, until the context is
// shut down: a client is let in if its key is in the list, as the user "<position in the list>".
// A key that is not there is looked up, once a second at most; who comes in between is to try
// again.
class Authenticator {
 public:
  // Ready when the constructor returns. `lookup` may be empty. Throws zmq::error_t.
  Authenticator(::zmq::context_t& context, std::vector<std::string> client_keys, KeyLookup lookup);
  ~Authenticator();  // shuts the context down

 private:
  void Loop() noexcept;
  void Answer();
  int Find(const std::string& key) const noexcept;
  // A status of ZAP; *user is the position if it is "200".
  const char* Check(const std::string& key, int* user);

  ::zmq::context_t& context_;
  std::vector<std::string> client_keys_;  // of the thread, like next_lookup_
  const KeyLookup lookup_;
  kit::Clock::time_point next_lookup_{};
  ::zmq::socket_t socket_;
  std::thread thread_;
};

}  // namespace engine::zmq_ps
