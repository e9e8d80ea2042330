// The server of a run's store and control channel: one connection per member.
#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/launch/member.h"
#include "app/launch/message.h"
#include "app/launch/server_key.h"
#include "core/base/deadline.h"
#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::launch {

// Owns no thread and never blocks: its owner polls the descriptors of AddPollFds and calls Handle.
// What the messages mean for the run is the observer's business. Every call from one thread.
class StoreServer {
 public:
  class Observer {
   public:
    // OK lets the member of a kHello in; else the sentence is sent back and the connection closed.
    // `adopted`: it came over a socket of our own, not over the network.
    virtual Status OnHello(const Message& hello, bool adopted) = 0;
    virtual void OnJoined(int member) = 0;
    // A member has sent something, or taken some of what waited for it.
    virtual void OnHeard(int member) = 0;
    // Before `key` is in the store.
    virtual void OnSet(const std::string& key) = 0;
    virtual void OnFail(int member, const Status& status) = 0;
    virtual void OnAllowLosses(int member) = 0;
    virtual void OnStop(int signal) = 0;
    virtual void OnBye(int member) = 0;
    // The connection ended, or broke the protocol, before kBye.
    virtual void OnLost(int member) = 0;
    // A connection of the listener was refused or ended before it joined: who and why.
    virtual void OnRefusedConnection(const std::string& address, const std::string& why) = 0;

   protected:
    ~Observer() = default;
  };

  explicit StoreServer(Observer& observer) : observer_(observer) {}

  // A listening socket whose connections are served from now on.
  void Listen(kit::UniqueFd listener) { listener_ = std::move(listener); }
  // Servers that come through the listener must prove that they know `key`.
  void RequireProof(ServerKey key) { key_ = std::move(key); }
  // A connection that exists already (one end of a socket pair).
  void Adopt(kit::UniqueFd socket) { Add(std::move(socket), kForever).adopted = true; }

  void AddPollFds(std::vector<pollfd>* out) const;
  // Accepts, reads, answers and writes whatever can be done now.
  void Handle();
  // Reads what `member` has sent before it died.
  void Drain(int member);
  // Closes its connection without a word, and nobody hears of it: another takes its place. Not from
  // an observer.
  void Forget(int member);
  // Sets a key of the store.
  void Put(const std::string& key, const std::string& value);

  void Send(int member, const Message& message);
  // To every member that has joined.
  void Broadcast(const Message& message);
  // Broadcasts kAbort, also to members that join later. The first call counts.
  void Abort(const Status& cause);
  // Writes what is still queued, until `timeout_ms`.
  void Flush(int64_t timeout_ms);
  // Closes every socket without a word: at the end, and in a forked child, which inherits them.
  void CloseAll();

 private:
  struct Connection {
    kit::UniqueFd socket;
    MessageReader reader;
    std::string out;
    size_t out_begin = 0;
    int member = base::kNobody;      // once it has joined
    bool adopted = false;            // not through the listener
    base::TimePoint hello_deadline;  // of a pending connection
    std::string address;             // of one that came through the listener, for messages
    std::optional<Message> hello;    // of a server that has to prove itself
    std::string challenge;           // sent to it
    bool blocked = false;            // it did not take all of `out`
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
  bool Full() const;  // of pending connections
  Connection& Add(kit::UniqueFd socket, int64_t hello_timeout_ms);
  void Read(Connection& connection);
  void Write(Connection& connection);
  void End(Connection& connection);  // it can neither be read nor written any more
  void Reap();
  void Dispatch(Connection& connection, Message& message);
  void Hello(Connection& connection, const Message& message);
  void Proof(Connection& connection, const Message& message);
  void Admit(Connection& connection, const Message& hello);
  void Refuse(Connection& connection, const std::string& why);
  void Get(Connection& connection, const Message& message);
  void Relay(const Connection& sender, Message& message);
  void Cancel(const Connection& connection, uint32_t id);
  static void Send(Connection& connection, const Message& message);

  Observer& observer_;
  kit::UniqueFd listener_;
  std::optional<ServerKey> key_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::map<std::string, std::string> values_;
  std::multimap<std::string, Waiter> waiters_;  // by key
  std::optional<Message> abort_;
  std::vector<char> read_buffer_;
};

}  // namespace engine::launch
