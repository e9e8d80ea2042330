// One slice of one transfer at its server: who has pushed it, and what became of it.
#pragma once

#include <cstdint>
#include <vector>
#include <zmq.hpp>

#include "clock.h"
#include "engine/status.h"
#include "reduce_pool.h"
#include "wire.h"

namespace engine::zmq_ps {

struct RoundId {
  uint64_t key = 0;
  uint64_t round = 0;
  uint32_t slice = 0;
  bool operator==(const RoundId&) const = default;
};

struct RoundIdHash {
  size_t operator()(const RoundId& id) const noexcept {
    return static_cast<size_t>((id.key ^ id.round * 0x9e3779b97f4a7c15) +
                               id.slice * 0xff51afd7ed55);
  }
};

// Open until every worker that is not excused has pushed, then complete; refused when they disagree
// or one is missing.
//
// Elements are folded in the order of the workers, whatever the order in which they arrive: so a
// sum of floats is the same in every run. What comes early waits, in the memory it was received in.
class Round {
 public:
  enum class State { kOpen, kComplete, kRefused };

  Round(const RoundId& id, const Header& first, uint32_t workers);

  const RoundId& id() const noexcept { return id_; }
  const SliceSpec& spec() const noexcept { return spec_; }
  State state() const noexcept { return state_; }
  const Status& refusal() const noexcept { return refusal_; }
  Clock::time_point deadline() const noexcept { return deadline_; }
  int32_t priority() const noexcept { return priority_; }
  uint64_t sequence() const noexcept { return sequence_; }
  bool busy() const noexcept { return busy_; }

  bool HasArrived(uint32_t worker) const noexcept { return arrivals_[worker].request != 0; }
  bool IsExcused(uint32_t worker) const noexcept { return arrivals_[worker].excused; }
  // Goes on without a worker that has not arrived. False: it alone has what others want.
  bool Excuse(uint32_t worker) noexcept;
  uint64_t RequestOf(uint32_t worker) const noexcept { return arrivals_[worker].request; }
  // The answer's tensor bytes, for all workers that receive; kComplete.
  ::zmq::message_t& result() noexcept { return accumulator_; }
  std::vector<uint32_t> Missing() const;

  // OK, or how the push differs from what came first.
  Status Check(const Header& push) const noexcept;
  // Keeps `data` without copying it.
  void Arrive(const Header& push, ::zmq::message_t data);

  // What can be folded now: true fills *task and makes the round busy until Folded. Otherwise the
  // round may have become complete.
  bool Advance(ReduceTask* task);
  void Folded(ReduceTask task);
  void Refuse(const Status& reason);

  // The worker has its answer, or will never want it.
  void Settle(uint32_t worker) noexcept { arrivals_[worker].settled = true; }
  bool IsSettled() const noexcept;

 private:
  struct Arrival {
    uint64_t request = 0;  // 0: not yet
    ::zmq::message_t data;
    bool settled = false;
    bool excused = false;
  };

  const RoundId id_;
  const SliceSpec spec_;
  const uint32_t first_worker_;
  State state_ = State::kOpen;
  Status refusal_;
  Clock::time_point deadline_ = Clock::time_point::max();
  int32_t priority_ = INT32_MIN;
  uint64_t sequence_ = 0;
  std::vector<Arrival> arrivals_;
  uint32_t next_ = 0;  // first worker that is not folded yet
  bool busy_ = false;
  ::zmq::message_t accumulator_;
};

}  // namespace engine::zmq_ps
