// One parameter server: adds up what workers push and answers each of them. It knows workers by
// number only and needs nothing but this header to run alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "curve.h"
#include "engine/ext/parameter_server.h"
#include "engine/status.h"
#include "link.h"
#include "socket_link.h"
#include "wake_up.h"

namespace engine::zmq_ps {

class ServerLoop;

struct ServerSettings {
  std::string endpoint;  // "tcp://address:port", or "tcp://address:*" for any free port
  KeyPair keys;          // empty: plain text, on loopback only
  std::vector<std::string> worker_keys;  // public keys, by worker; as many as workers with `keys`
  KeyLookup renewed_keys;  // of workers that took the place of lost ones; may be empty
  uint32_t workers = 1;
  std::optional<ParameterTraits> update;  // null: it adds up only
  int reduce_threads = 1;
  int io_threads = 1;
  uint64_t slice_bytes = 1 << 20;  // the most a worker may push at once
  int buffer_bytes = 0;            // of the kernel, per connection and direction; 0: its choice
  int64_t resend_ms = 500;         // silence after which an answer is asked about
  int64_t lost_after_ms = 1000;    // for which a worker may be without a connection
  Heartbeat heartbeat;
  std::function<void(std::string_view line)> log;  // what a person should know; any thread; may be
                                                   // empty
  LinkWrapper wrap;                                // for tests; may be empty

  // Whether the others go on when a worker is lost.
  bool allows_losses() const noexcept { return update && update->mode != UpdateMode::kSync; }
};

// Of tensor bytes, and of frames as a whole, since the start. Requests that came again count again.
struct ServerTraffic {
  uint64_t payload_in = 0, payload_out = 0;
  uint64_t frames_in = 0, frames_out = 0;  // headers too
  uint64_t repeated = 0;                   // pushes that had been seen before
};

class Server {
 public:
  // Bound and ready when it returns. kConfig: plain text off loopback, or keys that do not fit;
  // kResourceExhausted: the address is taken, or no descriptors.
  static Result<std::unique_ptr<Server>> Start(ServerSettings settings) noexcept;
  ~Server();  // Stop(0)

  // "tcp://127.0.0.1:41234". [any-thread]
  const std::string& endpoint() const noexcept { return endpoint_; }
  // [any-thread]
  ServerTraffic traffic() const noexcept;

  // Keeps parameters from now on; what came before waits for it. `optimizer` is used until this is
  // destroyed. At most once, and only with ServerSettings::update. [any-thread]
  void Serve(Optimizer& optimizer) noexcept;
  // Waits until all workers have left or are lost, or for Fail or Stop, whose reason it returns.
  Status WaitForEnd() noexcept;

  // Refuses everything that is not complete and all that comes, with `reason`. The first reason
  // stays. [any-thread]
  void Fail(const Status& reason) noexcept;

  // Waits at most `drain_ms` until the workers have what is complete, refuses the rest, and ends.
  void Stop(int64_t drain_ms) noexcept;

 private:
  friend class ServerLoop;
  explicit Server(ServerSettings settings);

  const ServerSettings settings_;
  std::string endpoint_;
  ::zmq::context_t context_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<ServerLoop> loop_;
  std::thread thread_;
};

}  // namespace engine::zmq_ps
