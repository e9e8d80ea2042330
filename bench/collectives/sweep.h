// Collectives of rising size through communicators that take turns.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/collectives/collective_buffers.h"
#include "bench/collectives/contender.h"
#include "bench/collectives/sessions.h"
#include "bench/statistics/ratio.h"
#include "bench/statistics/summary.h"
#include "tools/trace/step_figures.h"

namespace engine::bench {

struct SweepRequest {
  TransferKind kind = TransferKind::kAllReduce;
  DType dtype = DType::kFloat32;
  int64_t min_bytes = 4, max_bytes = 64 << 20;
  double factor = 2;           // from one size to the next, > 1
  double seconds = 0.2;        // of measuring, per size, contender and placement
  int64_t iterations = 0;      // in place of the seconds; 0: as many as fit into them
  int warm_ups = 3;            // of each turn
  int blocks = 4;              // of two rounds: A B C, then C B A
  int64_t timeout_ms = 30000;  // of one transfer
  uint64_t seed = 1;           // of the bootstrap
  bool all_in_a_turn = false;  // a turn takes all sizes, else one; each turn connects anew
  bool in_place_only = false;
  std::vector<Contender> contenders;
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
  Turns turns_us;               // by round
};

struct SweepRow {
  int64_t bytes = 0, count = 0;              // as nccl-tests counts them
  std::vector<Timing> timings[kPlacements];  // by contender; those not asked for are empty
  std::optional<Ratio> ratio[kPlacements];   // of two contenders that were both timed
};

struct SweepResult {
  std::vector<SweepRow> rows;
  int64_t wrong = 0;             // elements, over everything
  std::string wrong_in_words;    // the first, with its communicator
  std::vector<Status> failures;  // by contender: why it has no times, or fewer than others
};

using trace::BusFactor;

// The sizes of the request, without repetition.
std::vector<int64_t> Sizes(const SweepRequest& request, int ranks);

// Collective, in the body of each rank. `on_row` is called on rank 0 as soon as a row is there.
// The result is complete on rank 0 only, but for failures: a contender that fails, or lacks kind or
// dtype (kPlugin), is left out from then on. An error is that of the run.
Result<SweepResult> RunSweep(const SweepRequest& request, Sessions& sessions,
                             const std::function<void(const SweepRow&)>& on_row);

}  // namespace engine::bench
