// The server of a run's store and control channel: one connection per member.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "app/launch/member.h"
#include "app/launch/message.h"
#include "app/launch/server_key.h"
#include "core/base/deadline.h"
#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::launch {

// Where members from elsewhere join a run.
struct MemberListener {
  kit::UniqueFd socket;          // that listens; none: nobody comes
  std::optional<ServerKey> key;  // that they must prove to know
  bool loopback = false;         // only this host can reach it
};

// Owns no thread and never blocks: its owner polls fd() and calls Handle.
// What the messages mean for the run is the observer's business. Every call from one thread.
class StoreServer {
 public:
  class Observer {
   public:
    // OK lets the member of a kHello in; else the sentence is sent back and the connection closed.
    // `adopted`: it came over a socket of our own, not over the network.
    virtual Status OnHello(const Message& hello, bool adopted) = 0;
    virtual void OnJoined(int member) = 0;
    // A member that had joined has said kHello again.
    virtual void OnReady(int member) = 0;
    // A member has sent something, or taken some of what waited for it.
    virtual void OnHeard(int member) = 0;
    // Before `key` is in the store.
    virtual void OnSet(int member, const std::string& key) = 0;
    // kNobody: no descriptor is left for a connection, though no pending one holds any.
    virtual void OnFail(int member, const Status& status) = 0;
    // `gives_up`: that member takes part in nothing any more.
    virtual void OnStop(int signal, bool gives_up) = 0;
    virtual void OnBye(int member) = 0;
    // The connection ended, or broke the protocol, before kBye.
    virtual void OnLost(int member) = 0;
    // A connection of the listener was refused or ended before it joined: who and why.
    virtual void OnRefusedConnection(const std::string& address, const std::string& why) = 0;

   protected:
    ~Observer() = default;
  };

  // What has been read and written.
  struct Traffic {
    int64_t reads = 0;  // calls of recv
    int64_t messages_in = 0;
    int64_t messages_out = 0;
    int64_t bytes_in = 0;
    int64_t bytes_out = 0;
  };

  // Throws std::system_error without a descriptor.
  explicit StoreServer(Observer& observer);

  // From now on members may come there.
  void Listen(MemberListener listener);
  // A connection over a socket pair: the end of the member, or none with errno set.
  kit::UniqueFd Connect();

  // Readable when there is something to do.
  int fd() const { return epoll_.get(); }
  const Traffic& traffic() const { return traffic_; }
  // Accepts, reads, answers and writes whatever can be done now.
  void Handle();
  // Reads what `member` has sent before it died.
  void Drain(int member);
  // Closes its connection without a word, and nobody hears of it: another takes its place. Not from
  // an observer.
  void Forget(int member);
  // Forgets all keys, and who waits for one.
  void Clear();
  // Sets a key of the store, or removes some.
  void Put(const std::string& key, std::string value);

  void Send(int member, const Message& message);
  // To every member that has joined, or from one rank to all others.
  void Broadcast(const Message& message, int sender = base::kNobody);
  // Broadcasts kAbort, also to members that join later. The first call counts.
  void Abort(const Status& cause);
  // Writes what is still queued, until `timeout_ms`.
  void Flush(int64_t timeout_ms);
  // Closes every socket without a word: at the end, and in a forked child, which inherits them.
  void CloseAll();

 private:
  using Bytes = std::shared_ptr<const std::string>;  // one for all to whom it goes
  struct Connection;
  struct Connection {
    kit::UniqueFd socket;
    MessageReader reader;
    std::deque<Bytes> out;
    size_t out_begin = 0;        // in the first of them
    int member = base::kNobody;  // once it has joined
    std::string address;         // of one that came through the listener, for messages; else empty
    base::TimePoint accepted_at = std::chrono::steady_clock::now();
    std::optional<Message> hello;  // of a member that has to prove itself
    std::string challenge;         // sent to it
    bool blocked = false;          // it did not take all of `out`
    bool closing = false;          // close when `out` is written: its end is no loss
    bool broken = false;
    bool adopted() const { return address.empty(); }
    bool HasHad(int64_t ms) const {
      return base::Passed(accepted_at + std::chrono::milliseconds(ms));
    }
  };
  using Waiter = std::tuple<std::string, Connection*, uint32_t>;  // key, who, and its request

  void Accept();
  bool MakeRoom(int64_t least_ms);
  Connection& Add(kit::UniqueFd socket);
  void Read(Connection& connection);
  void Write(Connection& connection);
  // It is neither read nor written any more. `why` is for a pending one, by default its own end.
  void End(Connection& connection, const char* why = nullptr);
  void Reap();
  void Dispatch(Connection& connection, Message& message);
  void Hello(Connection& connection, const Message& message);
  void Proof(Connection& connection, const Message& message);
  void Admit(Connection& connection, const Message& hello);
  void Refuse(Connection& connection, const std::string& why);
  void Get(Connection& connection, const Message& message);
  std::string AddressOf(const Connection& asker) const;
  void Send(Connection& connection, const Bytes& frame, const Bytes& value = nullptr);

  Observer& observer_;
  kit::UniqueFd epoll_;
  MemberListener listener_;
  bool somebody_waits_ = false;  // to be accepted
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> pending_;   // of the listener, before they have joined; the oldest first
  std::map<int, Connection*> joined_;  // by member
  bool some_broken_ = false;
  std::map<std::string, Bytes> values_;
  std::set<Waiter> waiters_;
  std::optional<Message> abort_;
  std::vector<char> read_buffer_;
  Traffic traffic_;
};

}  // namespace engine::launch
