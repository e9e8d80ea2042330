// The thread of a server: receives, decides, answers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "clock.h"
#include "lent.h"
#include "poll_set.h"
#include "reduce_pool.h"
#include "request_window.h"
#include "round.h"
#include "send_ahead.h"
#include "send_queue.h"
#include "server.h"
#include "socket_link.h"
#include "table.h"
#include "wake_up.h"

namespace engine::zmq_ps {

class ServerLoop {
 public:
  // Throws zmq::error_t.
  ServerLoop(const ServerSettings& settings, ::zmq::context_t& context);

  const std::string& endpoint() const noexcept { return endpoint_; }
  ServerTraffic traffic() const noexcept;

  void Run() noexcept;                        // until Stop
  void Fail(const Status& reason) noexcept;   // [any-thread]
  void Stop(int64_t drain_ms) noexcept;       // [any-thread]
  void Serve(Optimizer& optimizer) noexcept;  // [any-thread]
  Status WaitForEnd() noexcept;               // [any-thread]

 private:
  // What may be under way to one worker: this many answers with tensor bytes, or window_bytes_.
  static constexpr size_t kWindowCount = 64;

  // What becomes of a request that is about parameters.
  struct ServedReply {
    Header header;  // of the request
    Clock::time_point deadline;
    bool ready = false;
    Status refusal;         // these of the answer, when it is ready
    ::zmq::message_t body;  // before: of the request, while there is no table
    ::zmq::message_t rows;  // of such a request
  };
  // An answer that a worker wants or has been sent and has not acknowledged.
  struct Pending {
    Round* round = nullptr;               // one of
    std::unique_ptr<ServedReply> served;  // these
    bool queued = false;
    bool sent = false;
    bool counted = false;  // takes part in the worker's window
    // It holds no tensor bytes, goes first and is not counted.
    bool IsReceipt() const noexcept { return served && served->ready && served->body.size() == 0; }
    size_t bytes = 0;           // of it
    Clock::time_point heard{};  // when it was sent, or last asked about
  };
  struct Worker {
    Worker(const ServerSettings& settings, std::shared_ptr<WakeUp> wake_up)
        : ahead(settings.slice_bytes, settings.buffer_bytes),
          lent(std::make_shared<Lent>(std::move(wake_up))) {}
    Worker(Worker&&) = default;

    uint32_t incarnation = 0;
    RequestWindow seen;
    std::unordered_map<uint64_t, Pending> pending;  // by request
    SendQueue<uint64_t> answers;                    // requests
    SendAhead ahead;
    std::shared_ptr<Lent> lent;  // libzmq may have messages when this is gone
    std::deque<Header> control;  // goes first
    size_t window_bytes = 0;     // sent and not acknowledged
    size_t window_count = 0;
    int descriptor = -1;  // of its connection
    int closed = -1;      // of its last one; what still arrives by it proves nothing
    std::optional<Clock::time_point> down_since;
    std::optional<Status> left;  // why nothing more comes from it
    bool given_up = false;       // it left without a word
  };
  struct Orders {  // from other threads
    Status failure;
    bool stop = false;
    int64_t drain_ms = 0;
    Optimizer* optimizer = nullptr;
    std::vector<PoolTask> done;
  };

  void Step(int timeout_ms);
  bool IsIdle() const noexcept;
  bool Drained() const noexcept;
  void TakeOrders();
  void HandleEvents();
  void ReceiveAll();
  void Handle(Message& message);
  bool Knows(Worker& worker, const Header& header);
  void Renew(uint32_t index, uint32_t incarnation);
  void Welcome(uint32_t index);
  void HandlePush(const Header& header, Message& message);
  void HandleCollective(const Header& header, ::zmq::message_t& body);
  void HandleRepeated(Worker& worker, uint64_t request);
  void HandleAck(const Header& header);
  void HandleProbe(const Header& header);
  Round* FindOrOpen(const Header& push);

  void Advance(Round& round);
  void Fold(Round& round, ReduceTask task);
  void AfterTask(PoolTask task);
  void AfterFold(ReduceTask task);
  void Refuse(Round& round, const Status& reason);
  void RefuseOpenRounds(const Status& reason);
  // Excuses workers that left, where a run goes on without them. Else the status with which a round
  // that lacks one is refused.
  std::optional<Status> Hopeless(Round& round) const;
  void Leave(uint32_t worker, const Status& reason, bool given_up);
  void Settle(Round& round, uint32_t worker);
  void QueueAnswers(Round& round);
  void QueueAnswer(uint32_t worker, uint64_t request);

  bool FitsServed(const Header& header, const Message& message) const noexcept;
  void HandleServed(const Header& header, Message& message);
  void AskTable(uint32_t index, uint64_t request);
  Status AskTable(uint32_t index, const Header& header, ::zmq::message_t& body,
                  const ::zmq::message_t& rows, bool* open);
  Status CheckUnits(uint32_t index, uint64_t digest);
  void StartTable(Optimizer& optimizer);
  void DriveTable();
  void ReplyServed(uint32_t index, uint64_t request, const Status& status, ::zmq::message_t body);
  void RefuseServed(const Status& reason);
  void RefuseHopelessPulls();
  std::optional<Status> Hopeless(uint32_t index, const ServedReply& reply) const;
  void RefuseLatePulls(Clock::time_point now);
  Status WhatAPullWaitsFor(uint32_t index, const ServedReply& reply) const;
  template <typename Visit>
  void ForOpenServed(const Visit& visit);

  static bool IsOpen(const Pending& pending) noexcept;
  void SendAll();
  void SendTo(uint32_t index);
  bool SendAnswer(uint32_t index, uint64_t request, Pending& pending);
  static ::zmq::message_t Share(Worker& worker, ::zmq::message_t& bytes);
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
  const std::shared_ptr<WakeUp> wake_up_ = std::make_shared<WakeUp>();
  PollSet poll_;

  // Of the loop's thread.
  std::vector<Worker> workers_;
  std::unordered_map<RoundId, std::unique_ptr<Round>, RoundIdHash> rounds_;
  uint64_t last_keyless_round_ = 0;
  std::unique_ptr<Table> table_;                        // null while it has no optimizer
  std::unordered_set<CellId, CellIdHash> stored_;       // cells that have values
  std::optional<std::pair<uint32_t, uint64_t>> units_;  // who registered first, and its digest
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
  Orders orders_;                  // these guarded by mutex_
  std::condition_variable ended_;  // with
  bool all_left_ = false;
  bool over_ = false;  // the loop has ended

  std::unique_ptr<ReducePool> pool_;  // calls back into this; last, so it is joined first
};

}  // namespace engine::zmq_ps
