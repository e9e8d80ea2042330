// The worker's side: pushes slices to servers and takes their answers.
//
// Sockets and requests belong to whoever has the turn: the worker's own thread, or a *guest*, which
// is a thread that waits for a transfer and does the work of the former meanwhile, so that no
// thread has to wake another one. While there is a guest the thread sleeps: one thread at a time
// waits for the sockets.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "clock.h"
#include "curve.h"
#include "engine/host.h"
#include "engine/status.h"
#include "lent.h"
#include "link.h"
#include "partition.h"
#include "poll_set.h"
#include "send_ahead.h"
#include "send_queue.h"
#include "socket_link.h"
#include "wake_up.h"
#include "wire.h"
#include "work.h"

namespace engine::zmq_ps {

struct ServerAddress {
  std::string endpoint;
  std::string public_key;  // empty: plain text
  int32_t rank = -1;       // that hosts it, or of servers of their own the index
  bool is_member = false;  // a server of its own

  int32_t blame() const noexcept { return is_member ? BlameServer(rank) : rank; }
};

struct WorkerSettings {
  uint32_t worker = 0;
  uint32_t world_size = 1;
  uint32_t incarnation = 0;
  std::vector<ServerAddress> servers;
  KeyPair keys;
  uint64_t slice_bytes = 1 << 20;
  uint64_t min_slice_bytes = 64 << 10;
  // Match transfers by their position instead of by their keys, and refuse other keys there.
  bool ordered = false;
  int io_threads = 1;
  int buffer_bytes = 0;
  int64_t resend_ms = 500;
  int64_t lost_after_ms = 1000;
  Heartbeat heartbeat;
  // Called once, on the worker's thread, with what others should know of the first failure.
  std::function<void(const Status& farewell)> on_failure;
  LinkWrapper wrap;                // for tests; may be empty
  std::shared_ptr<WorkPool> pool;  // whose works may help the worker; may be null
};

// After a failure every transfer fails with the first reason. Memory of a transfer is neither read
// nor written once its work is terminal.
class Worker {
 public:
  // Connects to all servers, until `deadline`: kRendezvous names one that is missing.
  static Result<std::unique_ptr<Worker>> Connect(WorkerSettings settings,
                                                 Clock::time_point deadline) noexcept;
  ~Worker();  // Abort, as kAborted, with a farewell that says only that this rank has left

  // Takes the worker's reference to `work`, unless it returns the reason of the failure. [io-lane]
  Status Submit(PooledWork* work) noexcept;

  // Does the work of the worker's thread until `work` is terminal or `deadline` has come. Returns
  // at once when another thread does so, and early after a failure. [any-thread]
  void Help(const PooledWork& work, Clock::time_point deadline) noexcept;

  // Fails everything with `reason`; the servers are told `farewell`. [any-thread]
  void Abort(const Status& reason, const Status& farewell) noexcept;

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  Status reason() const noexcept;

  // Bytes pushed to each server. [any-thread]
  std::vector<uint64_t> PushedBytes() const;

 private:
  struct Server {
    Server(const ServerAddress& at, const WorkerSettings& settings,
           std::shared_ptr<WakeUp> wake_up);

    const ServerAddress address;
    std::unique_ptr<Link> link;
    std::unique_ptr<Monitor> monitor;
    SendQueue<Request*> pushes;
    SendAhead ahead;
    Lent lent;
    std::deque<Header> control;  // goes first
    std::unordered_map<uint64_t, Request*> unanswered;
    std::vector<uint64_t> acks;   // of answers that the server may forget, not sent yet
    uint64_t acked_bytes = 0;     // of them
    Clock::time_point first_ack;  // when the first came, if there is one
    uint64_t next_request = 1;
    std::atomic<uint64_t> pushed_bytes{0};
    bool welcomed = false;
    std::optional<Clock::time_point> down_since;
  };

  explicit Worker(WorkerSettings settings);
  void OpenLinks();

  void Loop() noexcept;
  void WaitForGuest();
  // What there is to do without waiting, with the turn; `events`: also look at connections.
  struct Outcome {
    int wait_ms = 0;                 // until the next one; 0: at once
    PooledWork* finished = nullptr;  // a list, to be completed without the turn
  };
  Outcome Step(bool events);
  // A turn of one of several threads, with what goes with it. Returns how long to wait then.
  int TakeTurn(bool events, bool is_guest);
  static bool IsReady(Server& server);
  bool SawEvents(const PollSet& poll) const;
  void TakeInbox();
  void Begin(PooledWork* work);
  void QueuePush(Request* request);
  Header HeaderOf(MessageKind kind) const;

  void Acknowledge(Server& server, uint64_t request, uint64_t bytes);
  bool AcksAreDue(const Server& server) const;
  void SendTo(Server& server);
  bool SendControl(Server& server);
  bool SendPush(Server& server, Request& request);
  void AttachData(Request& request, Message* message);
  ::zmq::message_t Lend(Request& request, const void* data, size_t bytes);
  void ReceiveFrom(Server& server);
  void HandleEvents(Server& server);
  void Handle(Server& server, Message& message);
  void HandleWelcome(Server& server, const Header& header);
  void HandleAnswer(Server& server, const Header& header, const ::zmq::message_t& body);
  void HandleRefusal(const Status& reason);
  void HandleMissing(Server& server, const Header& header);
  void HandleProbe(Server& server, const Header& header);
  void LookAtClock(Clock::time_point now);
  void LookAtDeadlines(Clock::time_point now);
  void AskAbout(Server& server, Clock::time_point now);
  void SayHello(Server& server);

  void FailFound(const Status& reason);
  void FailThrown(const std::exception& error);
  void FailAll();
  void SayGoodbye(const Status& farewell);
  static void ForgetMemory(void* data, void* request) noexcept;
  void DropUse(PooledWork* work) noexcept;  // [any-thread]
  PooledWork* TakeUnused();
  void Complete(PooledWork* unused) noexcept;

  const WorkerSettings settings_;
  const PartitionRule rule_;

  std::atomic<bool> failed_{false};  // publishes reason_, which is constant from then on
  mutable std::mutex mutex_;         // may be taken with the turn, not the other way round
  std::condition_variable changed_;
  PooledWork* inbox_ = nullptr;  // these guarded by mutex_
  PooledWork** inbox_end_ = &inbox_;
  PooledWork* unused_ = nullptr;  // whose memory nobody refers to any more
  Status reason_;
  Status farewell_;
  bool orderly_ = false;       // it is the destructor that ends it
  bool thread_waits_ = false;  // for the guest to leave, and wants to be told
  bool welcomed_ = false;      // by all servers; written by the thread only

  const std::shared_ptr<WakeUp> wake_up_ = std::make_shared<WakeUp>();
  // Its threads use what is above, and end before that does; sockets are below.
  ::zmq::context_t context_;

  PollSet own_poll_;                // of the thread
  PollSet guest_poll_;              // of the guest
  std::atomic<bool> guest_{false};  // there is one

  std::mutex turn_;  // guards all that follows
  std::vector<std::unique_ptr<Server>> servers_;
  std::unordered_set<PooledWork*> active_;
  std::unordered_map<uint64_t, uint64_t> rounds_;  // by key: how many there were
  std::string encoded_;
  Clock::time_point next_look_{};
  Status hearsay_;  // what a server says of a lost rank; the reason from believe_at_ on
  Clock::time_point believe_at_{};

  std::thread thread_;
};

}  // namespace engine::zmq_ps
