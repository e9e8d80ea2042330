// Collectives of rising size through one communicator, or through two that take turns.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/collectives/collective_buffers.h"
#include "bench/collectives/contender.h"
#include "bench/statistics/ratio.h"
#include "bench/statistics/summary.h"
#include "tools/trace/step_figures.h"

namespace engine::bench {

struct SweepRequest {
  TransferKind kind = TransferKind::kAllReduce;
  int64_t min_bytes = 4, max_bytes = 64 << 20;
  double factor = 2;                  // from one size to the next, > 1
  double seconds = 0.2;               // of measuring, per size, contender and placement
  int blocks = 4;                     // of four turns, A B B A, per size; of one contender A A A A
  int64_t timeout_ms = 30000;         // of one transfer
  uint64_t seed = 1;                  // of the bootstrap
  std::vector<Contender> contenders;  // one or two
};

enum Placement { kOutOfPlace = 0, kInPlace = 1 };
constexpr int kPlacements = 2;
constexpr const char* Name(Placement placement) {
  return placement == kInPlace ? "in-place" : "out-of-place";
}

// One contender's figures of one size and placement.
struct Timing {
  int64_t wrong = 0;            // elements, over all ranks; -1: a communicator that moves nothing
  std::string first_wrong;      // in words
  int64_t iterations = 0;       // 0: not timed, because it is wrong
  Summary us;                   // of each iteration its slowest rank
  double algbw = 0, busbw = 0;  // GB/s (10^9), at the median
};

struct SweepRow {
  int64_t bytes = 0, count = 0;              // as nccl-tests counts them
  std::vector<Timing> timings[kPlacements];  // by contender
  std::optional<Ratio> ratio[kPlacements];   // of two contenders that were both timed
};

struct SweepResult {
  std::vector<SweepRow> rows;
  int64_t wrong = 0;           // elements, over everything
  std::string wrong_in_words;  // the first, with its communicator
};

using trace::BusFactor;

// The sizes of the request, without repetition.
std::vector<int64_t> Sizes(const SweepRequest& request, int ranks);

// Collective, in the body of each rank. `on_row` is called on rank 0 as soon as a row is there.
// The result is complete on rank 0 only. kPlugin when a communicator lacks the kind or float32.
Result<SweepResult> RunSweep(const SweepRequest& request, base::RankContext& rank,
                             const std::function<void(const SweepRow&)>& on_row);

}  // namespace engine::bench
