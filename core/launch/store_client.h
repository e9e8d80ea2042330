// One rank's connection to the store server: its store, its way to hear of the end of the run, and
// its way to report.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/launch/deadline.h"
#include "core/launch/message.h"
#include "core/launch/post_box.h"
#include "core/launch/rank_context.h"
#include "core/launch/store.h"
#include "core/launch/unique_fd.h"

namespace engine {

class StoreClient final : public Store {
 public:
  struct Identity {
    int rank = 0;
    int world_size = 1;
    std::string job;     // the same on all ranks of a run
    std::string server;  // for messages: "the launcher", "rank 0 at node1:29500"
    int server_rank = -1;
  };

  // Says over the connected `socket` who this rank is. `abort` and what `on_stop` refers to outlive
  // the client; on_stop is called from the reader thread with the signal by which the user asked to
  // stop. When `abort` is raised by this rank itself, the server is told at once.
  StoreClient(UniqueFd socket, const Identity& identity, AbortSignal& abort,
              std::function<void(int)> on_stop);
  ~StoreClient() override;

  // Waits until every rank is there. kRendezvous with the server's
  // sentence if it refuses, the reason of the abort if the run ends before it starts.
  Status Join(TimePoint deadline);

  Status Set(std::string_view key, std::string_view value) override;
  Result<std::string> Get(std::string_view key, int64_t timeout_ms) override;
  Result<bool> Has(std::string_view key) override;
  Status Post(std::string_view text) override;
  void Listen(std::function<void(std::string_view)> listener) override;

  // The user asked this rank to stop: the server tells all.
  void RequestStop(int signal);

  // Reports how this rank ended and closes. Call once, last.
  void Leave(const Status& status);

  // The cause of the end of the run as the server knows it; OK if it gave none.
  Status cause() const;
  // Whether the server has followed this rank to its end, so that it can speak for it.
  bool heard() const;

 private:
  enum class Phase { kJoining, kRunning, kRefused, kClosed };

  Result<Message> Request(MessageKind kind, std::string_view key, std::string_view value,
                          int64_t timeout_ms);
  Status Send(const Message& message, TimePoint deadline);
  void ReadLoop();
  bool Dispatch(Message& message);  // false when the stream is over
  void Aborted(const Status& cause);
  void ConnectionLost();

  const UniqueFd socket_;
  const Identity identity_;
  AbortSignal& abort_;
  const std::function<void(int)> on_stop_;
  int token_ = 0;

  std::mutex send_mutex_;  // one frame at a time
  PostBox posts_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kJoining;                       // guarded by mutex_
  Status refusal_;                                      // guarded by mutex_
  Status cause_;                                        // guarded by mutex_
  bool welcomed_ = false;                               // guarded by mutex_
  bool lost_ = false;                                   // guarded by mutex_
  bool leaving_ = false;                                // guarded by mutex_
  bool raised_here_ = false;                            // guarded by mutex_: by the reader
  uint32_t next_id_ = 1;                                // guarded by mutex_
  std::map<uint32_t, std::optional<Message>> replies_;  // guarded by mutex_; by request

  std::thread reader_;
};

}  // namespace engine
