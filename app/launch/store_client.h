// One member's connection to the store server: its store, its notice of the end of the run,
// and its way to report.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "app/launch/deadlines.h"
#include "app/launch/member.h"
#include "app/launch/message.h"
#include "app/launch/message_queue.h"
#include "app/launch/server_key.h"
#include "core/base/deadline.h"
#include "core/base/rank_context.h"
#include "core/base/store.h"
#include "kit/unique_fd.h"

namespace engine::launch {

class StoreClient final : public base::Store {
 public:
  struct Identity {
    int member = 0;      // a rank, or ServerId(i)
    int world_size = 1;  // 0: a server that does not know
    std::string job;     // the same on all ranks of a run
    std::string server;  // for messages: "the launcher", "rank 0 at node1:29500"
    int server_rank = -1;
    // Shared with the run: asked for it, this member proves that it knows the key, and the store
    // must prove the same.
    std::optional<ServerKey> key = {};
  };

  // Says over the connected `socket` who this is. Nothing that is said waits for the server: what
  // it does not take now is sent when it does. Throws std::system_error without a descriptor or
  // thread. `abort` and what `on_stop` refers to outlive the
  // client; on_stop is called from the reader thread with the signal by which the user asked to
  // stop, and whether the run has started. When `abort` is raised by this member itself, the server
  // is told at once, but for a request to stop.
  StoreClient(kit::UniqueFd socket, const Identity& identity, base::AbortSignal& abort,
              std::function<void(int signal, bool started)> on_stop);
  ~StoreClient() override;

  // Waits until every member is there. kRendezvous with the server's sentence if it refuses, the
  // reason of the abort if the run ends before it starts.
  Status Join(base::TimePoint deadline);
  // After a failure: waits until the store says that the run goes on without who was lost, and then
  // until all are there again. The store is empty then, and nothing of `abort` is raised. The reason of
  // the abort, or `cause`, when the run ends instead.
  Status Rejoin(const Status& cause, base::TimePoint deadline);
  // Whether every member is there.
  bool started() const { return Locked(shape_).has_value(); }
  // Who is in the run, as its store says. After Join.
  RunShape shape() const { return *Locked(shape_); }

  Status Set(std::string_view key, std::string_view value) override;
  Result<std::string> Get(std::string_view key, int64_t timeout_ms) override;
  Result<bool> Has(std::string_view key) override;
  Status Post(std::string_view text) override;
  void Listen(std::function<void(std::string_view)> listener) override {
    posts_.Listen(std::move(listener));
  }

  // These say nothing when they do not get through: a lost server ends the run anyway.
  // The user asked this member to stop: the server tells all.
  void RequestStop(int signal);
  // Why this member fails. The server takes the first report for the cause.
  void Report(const Status& failure) { (void)Send(EncodeStatus(MessageKind::kFail, failure)); }
  // Reports how this member ended and closes. Call once, last.
  void Leave(const Status& status);

  // The cause of the end of the run as the server knows it; OK if it gave none.
  Status cause() const { return Locked(cause_); }
  // Whether the connection ended before this member did.
  bool lost() const { return Locked(lost_); }
  // Of a failure that only says that something did not come in time: where the server is silent,
  // that is the cause, and the returned status says so.
  Status Explain(const Status& failure) const;

 private:
  template <typename T>
  T Locked(const T& member) const {
    const std::lock_guard lock(mutex_);
    return member;
  }
  void HearAborts();
  // Null: as long as it takes to hear of a server that is stopped, or of a network that is gone.
  Result<Message> Request(MessageKind kind, std::string_view key, std::string_view value,
                          std::optional<int64_t> limit_ms = {});
  Status Send(const Message& message);
  Status WriteOut();
  bool Wait();
  Status Silent(const char* then) const;
  void ReadLoop();
  bool Dispatch(Message& message);  // false when the stream is over
  bool Handshake(const Message& message);
  bool Answer(Message& message);
  void Refuse(const std::string& sentence);
  void ConnectionLost(const Status& why);

  const kit::UniqueFd socket_;
  const Identity identity_;
  base::AbortSignal& abort_;
  const std::function<void(int, bool)> on_stop_;
  int token_ = 0;

  // Written by the reader: how long the server may be silent, as it says, and has been.
  std::atomic<int64_t> limit_ms_{kLivenessTimeoutMs};
  std::atomic<int64_t> silent_ms_{0};
  const kit::UniqueFd wake_;  // an eventfd: there is something in the outbox for the reader to send
  std::mutex send_mutex_;
  std::string outbox_;       // guarded by send_mutex_: frames, of which the first may be cut
  size_t outbox_begin_ = 0;  // guarded by send_mutex_
  bool last_said_ = false;   // guarded by send_mutex_: nothing follows the outbox
  MessageQueue posts_;

  // The handshake, on the reader's thread.
  std::string challenge_, nonce_;
  bool proven_ = false;  // the store has proved that it knows the key

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<RunShape> shape_;                       // guarded by mutex_; once all were there
  bool together_ = false;                               // guarded by mutex_: all are there
  Status refusal_;                                      // guarded by mutex_
  Status cause_;                                        // guarded by mutex_
  bool closed_ = false;                                 // guarded by mutex_: by the server
  bool lost_ = false;                                   // guarded by mutex_: closed too soon
  bool leaving_ = false;                                // guarded by mutex_
  bool regroups_ = false;                               // guarded by mutex_: somebody is lost
  uint32_t next_id_ = 1;                                // guarded by mutex_
  std::map<uint32_t, std::optional<Message>> replies_;  // guarded by mutex_; by request

  std::thread reader_;
};

}  // namespace engine::launch
