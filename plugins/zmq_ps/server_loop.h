// The thread of a server: receives, decides, answers.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "clock.h"
#include "reduce_pool.h"
#include "request_window.h"
#include "round.h"
#include "send_queue.h"
#include "server.h"
#include "socket_link.h"
#include "wake_up.h"

namespace engine::zmq_ps {

class ServerLoop {
 public:
  // Throws zmq::error_t.
  ServerLoop(const ServerSettings& settings, ::zmq::context_t& context);

  const std::string& endpoint() const noexcept { return endpoint_; }
  ServerTraffic traffic() const noexcept;

  void Run() noexcept;                       // until Stop
  void Fail(const Status& reason) noexcept;  // [any-thread]
  void Stop(int64_t drain_ms) noexcept;      // [any-thread]

 private:
  // An answer that a worker wants or has been sent and has not acknowledged.
  struct Pending {
    Round* round = nullptr;
    bool queued = false;
    bool sent = false;          // takes part in the worker's window
    size_t bytes = 0;           // of it
    Clock::time_point heard{};  // when it was sent, or last asked about
  };
  struct Worker {
    RequestWindow seen;
    std::unordered_map<uint64_t, Pending> pending;  // by request
    SendQueue<uint64_t> answers;                    // requests
    std::deque<Header> control;                     // goes first
    size_t window_bytes = 0;                        // sent and not acknowledged
    size_t window_count = 0;
    int descriptor = -1;  // of its connection
    int closed = -1;      // of its last one; what still arrives by it proves nothing
    std::optional<Clock::time_point> down_since;
    std::optional<Status> left;  // why nothing more comes from it
  };
  struct Orders {  // from other threads
    Status failure;
    bool stop = false;
    int64_t drain_ms = 0;
    std::vector<ReduceTask> folded;
  };

  void Step(int timeout_ms);
  bool Drained() const noexcept;
  void TakeOrders();
  void HandleEvents();
  void ReceiveAll();
  void Handle(Message& message);
  void HandlePush(const Header& header, ::zmq::message_t& body);
  void HandleRepeated(Worker& worker, uint64_t request);
  void HandleAck(const Header& header);
  void HandleProbe(const Header& header);
  Round* FindOrOpen(const Header& push);

  void Advance(Round& round);
  void Fold(Round& round, ReduceTask task);
  void AfterFold(ReduceTask task);
  void Refuse(Round& round, const Status& reason);
  void RefuseOpenRounds(const Status& reason);
  // The status with which a round that lacks a worker that left is refused, if it does.
  std::optional<Status> Hopeless(const Round& round) const;
  void Leave(uint32_t worker, const Status& reason);
  void Settle(Round& round, uint32_t worker);
  void QueueAnswers(Round& round);
  void QueueAnswer(uint32_t worker, uint64_t request);

  void SendAll();
  void SendTo(uint32_t index);
  bool SendAnswer(uint32_t index, uint64_t request, Pending& pending);
  bool SendMessage(Message& message);
  void LookAtClock(Clock::time_point now);
  void AskAbout(Worker& worker, Clock::time_point now);

  void Complain(const char* what);
  void FlushComplaints(Clock::time_point now);

  const ServerSettings& settings_;
  const size_t window_bytes_;
  std::string endpoint_;
  RouterLink* socket_ = nullptr;  // inside link_
  std::unique_ptr<Link> link_;
  std::unique_ptr<Monitor> monitor_;
  WakeUp wake_up_;

  // Of the loop's thread.
  std::vector<Worker> workers_;
  std::unordered_map<RoundId, std::unique_ptr<Round>, RoundIdHash> rounds_;
  Status failure_;
  std::optional<Clock::time_point> stop_at_;
  Clock::time_point next_look_{};
  std::string encoded_;
  const char* complaint_ = nullptr;
  uint64_t complaints_ = 0;
  Clock::time_point next_complaint_{};

  std::atomic<uint64_t> payload_in_{0}, payload_out_{0}, frames_in_{0}, frames_out_{0},
      repeated_{0};

  std::mutex mutex_;
  Orders orders_;  // guarded by mutex_

  std::unique_ptr<ReducePool> pool_;  // calls back into this; last, so it is joined first
};

}  // namespace engine::zmq_ps
