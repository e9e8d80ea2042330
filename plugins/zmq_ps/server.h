// One parameter server: adds up what ranks push and answers each of them. It knows ranks by number
// only and needs nothing of a Host.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives.h"
#include "engine/ext/parameter_server.h"
#include "engine/status.h"
#include "keys.h"
#include "parameter_store.h"
#include "session.h"
#include "socket_link.h"

namespace engine::zmq_ps {

// How long a server that ends stays for ranks that still fetch their results; after a failure, for
// the cause to reach those that can be reached.
constexpr int64_t DrainMs(bool failed) noexcept {
  return failed ? 500 : 2000;
}

struct ServerSettings {
  std::string endpoint;    // "tcp://address:port", or "tcp://address:*" for any free port
  std::string secret_key;  // empty: plain text, on loopback only
  std::vector<std::string> worker_keys;   // public keys, by rank
  KeyLookup renewed_keys;                 // of ranks that took the place of lost ones; may be empty
  std::optional<ParameterTraits> update;  // null: it adds up only
  int reduce_threads = 1;
  ConnectionSettings connection;
  std::function<void(std::string_view line)> log;  // what a person should know; any thread; may be
                                                   // empty

  // Whether the others go on when a rank is lost.
  bool allows_losses() const noexcept { return update && update->mode != UpdateMode::kSync; }
};

class Server {
 public:
  // Bound and ready when it returns. kConfig: plain text off loopback; kResourceExhausted: the
  // address is taken, or no descriptors.
  static Result<std::unique_ptr<Server>> Start(ServerSettings settings) noexcept;
  ~Server();  // Stop(0)

  // "tcp://127.0.0.1:41234". [any-thread]
  const std::string& endpoint() const noexcept { return endpoint_; }

  // Keeps parameters from now on; what came before waits for it. `optimizer` is used until Stop
  // returns. At most once; of no effect without ServerSettings::update. [any-thread]
  void Serve(Optimizer& optimizer) noexcept;
  // Waits until all ranks have left or are lost, or for Fail or Stop, whose reason it returns.
  Status WaitForEnd() noexcept;

  // Refuses everything that is not complete and all that comes, with `reason`. The first reason
  // stays. [any-thread]
  void Fail(const Status& reason) noexcept;

  // Waits at most `drain_ms` until the ranks have what is complete, refuses the rest, and ends: no
  // thread of the server runs when it returns.
  void Stop(int64_t drain_ms) noexcept;

 private:
  explicit Server(ServerSettings settings);

  void Run() noexcept;
  void Step(int timeout_ms);
  bool IsIdle() const noexcept;
  bool IsDrained() const noexcept;
  void TakeOrders();
  void HandleEvents();
  void ReceiveAll();
  void Handle(Message& message);
  bool Admit(Session& session, const Header& header);
  void Renew(uint32_t index, uint32_t incarnation);
  void HandlePush(const Header& header, Message& message);
  void HandleProbe(const Header& probe);
  Status RefusalOf(const Header& header, const Message& message) const;
  void Leave(uint32_t index, const Status& reason, bool expired);
  void RefuseAll(const Status& reason);
  void CheckTime(Clock::time_point now);
  void Log(const std::string& line) const;

  struct Orders {  // from other threads
    Status failure;
    std::optional<int64_t> stop_after_ms;
    Optimizer* optimizer = nullptr;
    std::vector<Offload::Function> done;
  };

  const ServerSettings settings_;
  std::string endpoint_;
  const std::shared_ptr<WakeUp> wake_up_ = std::make_shared<WakeUp>();

  std::mutex mutex_;
  Orders orders_;  // these guarded by mutex_
  bool all_left_ = false;
  bool ended_ = false;               // the loop has
  std::condition_variable changed_;  // one of them has

  ::zmq::context_t context_;
  Authenticator authenticator_;

  // Of the loop's thread.
  std::unique_ptr<RouterLink> link_;
  PollSet poll_;
  std::vector<Session> sessions_;  // by rank
  Status failure_;
  std::optional<Clock::time_point> stop_at_;
  Clock::time_point next_check_{}, next_log_{};
  uint64_t unproven_ = 0;  // connections since then that no rank has proven to be its own

  std::unique_ptr<Offload> offload_;
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<ParameterStore> parameters_;
  std::thread thread_;
};

}  // namespace engine::zmq_ps
