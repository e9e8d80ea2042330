// What the ranks of a run try together, one thing after another: if one fails the next still runs.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "bench/process/rendezvous.h"

namespace engine::bench {

class Sessions {
 public:
  explicit Sessions(base::RankContext& rank) : rank_(rank), all_(rank, kLongestMs) {}

  base::RankContext& rank() const { return rank_; }
  Rendezvous& all() { return all_; }

  // Collective. Runs `body` in a context of its own, where keys of the store, the abort signal and
  // what `info` says are no others'; null: this rank only waits for those that run one. When the
  // body fails on a rank, the store ends the waits of the others. *failure is the same on all
  // ranks: OK, or the first error that has no other for its cause. An error is returned when the
  // run itself is over.
  Status Try(const RankInfo& info, const std::function<Status(base::RankContext&)>& body,
             Status* failure);

  // Collective: contenders take turns with Try; one that has a failure has no turn any more. Each
  // round is the mirror of the one before, so what drifts steadily cancels in the mean of both.
  Status TakeTurns(int rounds,
                   const std::function<Status(size_t contender, base::RankContext&)>& turn,
                   std::vector<Status>* failures);

 private:
  // Of a whole session: each wait inside of it has a deadline of its own.
  static constexpr int64_t kLongestMs = 3600 * 1000;

  base::RankContext& rank_;
  Rendezvous all_;
  int sessions_ = 0;
};

}  // namespace engine::bench
