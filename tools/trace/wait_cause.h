// Who made the compute lane wait.
#pragma once

#include <string>
#include <vector>

#include "tools/trace/intervals.h"
#include "tools/trace/timeline_index.h"

namespace engine::trace {

enum class CauseKind : int32_t {
  kLateRank = 0,  // another rank had the transfer ready, or submitted it, later than this one; of
                  // a pull: pushed the bucket later than this one asked for it
  kWire = 1,      // the bytes took their time
  kQueue = 2,     // the transfer was ready, but others had the link or the credit
  kHeld = 3,      // something was ready, and nothing was under way
  kUnknown = 4,
};

constexpr const char* Name(CauseKind kind) noexcept {
  constexpr const char* kNames[] = {"late rank", "wire", "queue", "held back", "unknown"};
  return kNames[static_cast<int32_t>(kind)];
}

struct WaitCause {
  CauseKind kind = CauseKind::kUnknown;
  int32_t rank = -1;               // kLateRank: which
  int64_t part_ns = 0;             // so much of the wait
  const Span* transfer = nullptr;  // the one that was late, slow or queued; null: not known
  std::string text;                // one sentence for people
};

// Borrows the indices of all ranks, which are on one clock.
class CauseFinder {
 public:
  explicit CauseFinder(const std::vector<TimelineIndex>& ranks);

  // The largest part of a wait of ranks[position] and what it was.
  WaitCause Explain(size_t position, const StallRecord& stall) const;

 private:
  // One transfer on all ranks: which had it ready last, which submitted it last (of a pull: pushed
  // last).
  struct Alignment {
    size_t ready_position = 0, submitted_position = 0;
    const Span* ready_span = nullptr;      // of ranks_[ready_position]
    const Span* submitted_span = nullptr;  // of ranks_[submitted_position]; of a pull: its push
    int64_t ready_ns = 0;
    int64_t submitted_ns = 0;
    int64_t wire_ns = 0;  // when the last rank sent its first byte, at least submitted_ns
  };
  Alignment Align(size_t position, const Span& transfer) const;
  const Span& Origin(size_t position, const Span& transfer, Interval* wait) const;
  WaitCause ExplainTransfer(size_t position, const Span& last, Interval wait) const;
  WaitCause PushedLate(size_t position, const Span& pull, const Alignment& all) const;
  WaitCause Wire(size_t position, const Span& transfer, int64_t begin_ns) const;
  WaitCause ReadyLate(size_t position, const Span& transfer, const Alignment& all) const;
  WaitCause SubmittedLate(size_t position, const Span& transfer, const Alignment& all) const;
  std::string WhyLate(size_t position, const Span& transfer, size_t late_position, const Span& late,
                      int64_t late_ns) const;
  WaitCause Queue(size_t position, const Span& transfer, const Interval& queued) const;
  const Span* LastEndedWithin(size_t position, const Interval& window) const;
  // The transfer but `except` that was longest on the wire within `window`; null: none was.
  const Span* Blocker(size_t position, const Interval& window, const Span* except) const;

  const std::vector<TimelineIndex>& ranks_;
  std::vector<int64_t> longest_transfer_ns_;  // by position
};

}  // namespace engine::trace
