// Where the time of steps went, on one rank.
#pragma once

#include <optional>
#include <vector>

#include "tools/trace/intervals.h"
#include "tools/trace/quantile.h"
#include "tools/trace/timeline_index.h"

namespace engine::trace {

// Of one step, or medians over steps: then each is a median of its own, and they need not add up.
// Times in nanoseconds within the step, whatever step the work belongs to; docs/trace.md defines
// them.
struct StepFigures {
  double step = 0;
  double forward = 0, backward = 0;
  double hooks = 0, update = 0;
  double exposed = 0;  // waits of the compute lane
  double silent = 0;   // part of it, no transfer being under way
  double other = 0;    // what is left: the engine itself
  double communication = 0;
  std::optional<double> overlap;  // 1 - exposed / communication
  // Of the transfers of buckets that belong to the step, bytes per second while any was on the wire.
  std::optional<double> algorithm_bandwidth, bus_bandwidth;
};

// Bytes on the link of a rank, each way.
struct LinkLoad {
  double out = 0, in = 0;
  // A link carries both ways at once.
  double larger() const { return out > in ? out : in; }
};

// Bytes on the busiest link / bytes of the result, as nccl-tests define busbw / algbw: 2(n-1)/n for
// an all-reduce, (n-1)/n for reduce-scatter and all-gather, else 1.
double BusFactor(TransferKind kind, int ranks);

// Adds what a rank sends and receives at least for a transfer of `task`: a collective its size times
// BusFactor both ways, a push its size one way, a pull the other way.
void AddLinkBytes(const TraceTask& task, int32_t world_size, LinkLoad* load);

// Whether it moves a bucket of the scheduler's plan, not a few numbers.
bool MovesBucket(const TraceTask& task);

// Borrows `index`.
class StepMeter {
 public:
  explicit StepMeter(const TimelineIndex& index);
  StepFigures Measure(uint64_t step, const Interval& window) const;

 private:
  const TimelineIndex& index_;
  Intervals forward_, backward_, hooks_, update_, waits_, communication_, covered_waits_;
};

StepFigures Medians(const std::vector<StepFigures>& steps);

}  // namespace engine::trace
