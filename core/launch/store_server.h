// The server of a run's store and control channel: one connection per rank.
#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/deadline.h"
#include "core/launch/message.h"
#include "core/launch/unique_fd.h"
#include "engine/status.h"

namespace engine {

// Owns no thread and never blocks: its owner polls the descriptors of AddPollFds and calls Handle.
// What the messages mean for the run is the observer's business. Every call from one thread.
class StoreServer {
 public:
  class Observer {
   public:
    // OK lets the rank of a kHello in; else the sentence is sent back and the connection closed.
    virtual Status OnHello(const Message& hello) = 0;
    virtual void OnJoined(int rank) = 0;
    virtual void OnFail(int rank, const Status& status) = 0;
    virtual void OnStop(int signal) = 0;
    virtual void OnBye(int rank) = 0;
    // The connection ended, or spoke nonsense, before kBye.
    virtual void OnLost(int rank) = 0;

   protected:
    ~Observer() = default;
  };

  explicit StoreServer(Observer& observer) : observer_(observer) {}

  // A listening socket whose connections are served from now on.
  void Listen(UniqueFd listener) { listener_ = std::move(listener); }
  // A connection that exists already (one end of a socket pair).
  void Adopt(UniqueFd socket) { Add(std::move(socket), kForever); }

  void AddPollFds(std::vector<pollfd>* out) const;
  // Accepts, reads, answers and writes whatever can be done now.
  void Handle();
  // Reads what `rank` has sent before it died.
  void Drain(int rank);

  // To every rank that has joined.
  void Broadcast(const Message& message);
  // Broadcasts kAbort, also to ranks that join later. The first call counts.
  void Abort(const Status& cause);
  // Writes what is still queued, until `timeout_ms`.
  void Flush(int64_t timeout_ms);
  // Closes every socket without a word: at the end, and in a forked child, which inherits them.
  void CloseAll();

 private:
  struct Connection {
    UniqueFd socket;
    MessageReader reader;
    std::string out;
    size_t out_begin = 0;
    int rank = -1;             // once it has joined
    TimePoint hello_deadline;  // of a stranger
    bool said_bye = false;
    bool closing = false;  // close when `out` is written
    bool broken = false;
  };
  struct Waiter {
    const Connection* connection;
    uint32_t id;
  };

  static constexpr int64_t kForever = INT64_MAX;

  void Accept();
  void Add(UniqueFd socket, int64_t hello_timeout_ms);
  void Read(Connection& connection);
  void Write(Connection& connection);
  void End(Connection& connection);  // it can neither be read nor written any more
  void Reap();
  void Dispatch(Connection& connection, Message& message);
  void Hello(Connection& connection, const Message& message);
  void Set(Connection& connection, Message& message);
  void Get(Connection& connection, const Message& message);
  void Relay(const Connection& sender, Message& message);
  void Cancel(const Connection& connection, uint32_t id);
  static void Send(Connection& connection, const Message& message);

  Observer& observer_;
  UniqueFd listener_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::map<std::string, std::string> values_;
  std::multimap<std::string, Waiter> waiters_;  // by key
  std::optional<Message> abort_;
  std::vector<char> read_buffer_;
};

}  // namespace engine
