// One rank, as a server sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "engine/status.h"
#include "flow.h"
#include "kit/communicator.h"
#include "socket_link.h"
#include "wire.h"

namespace engine::zmq_ps {

// A request, from its arrival until its answer is acknowledged.
struct PendingRequest {
  Header header;          // of the request
  ::zmq::message_t body;  // of the request while it waits; then of the answer
  ::zmq::message_t rows;
  Status refusal;      // of the answer
  bool ready = false;  // there is an answer
  bool queued = false;
  bool sent = false;

  // An answer without tensor bytes: it goes first.
  bool IsReceipt() const noexcept { return ready && body.size() == 0; }
};

class Session {
 public:
  Session(uint32_t worker, uint32_t workers, const FlowSettings& flow,
          std::shared_ptr<WakeUp> wake_up);

  // Requests.
  bool IsNew(uint64_t request) const;
  // Of a new one.
  PendingRequest& Open(const Header& header);
  PendingRequest* Find(uint64_t request);
  // Answers a request, once; nothing happens when it is not pending any more.
  void Answer(uint64_t request, const Status& status, ::zmq::message_t body);
  void Acknowledge(const ::zmq::message_t& requests);
  void Repeat(uint64_t request);
  bool has_pending() const noexcept { return !pending_.empty(); }
  // When one of its requests or answers last did.
  Clock::time_point moved_at() const noexcept { return moved_at_; }
  // Visits those without an answer; `visit` may answer them.
  template <typename Visit>
  void ForEachOpen(const Visit& visit) {
    for (auto& [request, pending] : pending_) {
      if (!pending.ready) visit(pending);
    }
  }

  // Connections.
  void Heard(int descriptor);
  // False: the event is of another connection.
  bool HandleEvent(const ConnectionEvent& event, Clock::time_point now);
  // Whether it has been without a connection for so long.
  bool IsDown(Clock::time_point now, int64_t lost_after_ms) const;
  bool has_connection() const noexcept { return !down_since_; }
  // Sends a welcome; `again`: and once more what it has not acknowledged.
  void Welcome(uint64_t last_round, bool again);

  // Membership.
  uint32_t incarnation() const noexcept { return incarnation_; }
  // Why nothing more comes from it; null while it takes part.
  const Status* left() const noexcept { return left_ ? &*left_ : nullptr; }
  // `expired`: it did not say so itself.
  void Leave(const Status& reason, bool expired);
  // Refuses all that it asks for.
  void Refuse(const Status& reason);
  // The same for one that counts as expired and still speaks.
  void RefuseExpired();
  void Renew(uint32_t incarnation);

  // Sends what there is room for.
  void Send(RouterLink& link);

 private:
  bool SendControl(RouterLink& link);
  bool SendAnswer(PendingRequest& pending, RouterLink& link);
  void Queue(PendingRequest& pending);
  Header HeaderOf(MessageKind kind) const;

  const uint32_t worker_, workers_;
  const std::shared_ptr<WakeUp> wake_up_;

  Clock::time_point moved_at_ = Clock::now();
  uint64_t complete_ = 0;               // all requests up to here were seen
  std::unordered_set<uint64_t> ahead_;  // and these
  std::unordered_map<uint64_t, PendingRequest> pending_;
  SendQueue<uint64_t> answers_;
  const int ahead_of_link_;
  std::shared_ptr<BorrowedBuffers> borrowed_;  // libzmq may have messages when this is gone

  int descriptor_ = -1;  // of its connection
  int closed_ = -1;      // of its last one; what still arrives by it proves nothing
  std::optional<Clock::time_point> down_since_;

  uint32_t incarnation_ = 0;
  std::optional<Status> left_;
  bool expired_ = false;
  std::optional<uint64_t> welcome_due_;  // with the last round
  std::optional<Status> refusal_due_;
};

}  // namespace engine::zmq_ps
