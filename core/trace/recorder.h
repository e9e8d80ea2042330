// What a rank did and when: always on, bounded, without allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine::trace {

enum class SpanKind : uint32_t {
  kTask = 0,   // one task of a step
  kWait = 1,   // the compute lane had nothing to run; `task` is the compute task that ended it, or
               // kNoTask
  kStep = 2,   // from the begin of a step to the begin of the next step or of a flush
  kFlush = 3,  // before an evaluation, a checkpoint or the end
};

constexpr uint32_t kNoTask = UINT32_MAX;

// Times are CLOCK_MONOTONIC of the rank's host.
struct Span {
  SpanKind kind = SpanKind::kTask;
  uint32_t task = kNoTask;
  uint64_t step = 0;
  int64_t ready_ns = 0;  // kTask: when all it depends on was done
  int64_t begin_ns = 0;  // kTask: when it was started; of a transfer: submitted
  int64_t wire_ns = 0;   // transfers: when the first byte left, 0 if the communicator does not say
  int64_t end_ns = 0;    // of a transfer: when the communicator said that it was done
};

// Keeps the newest `capacity` (at least 1) spans. Not synchronised: the executor calls it under its
// lock.
class SpanRecorder {
 public:
  explicit SpanRecorder(size_t capacity) : spans_(capacity) {}

  void Record(const Span& span) noexcept {
    spans_[static_cast<size_t>(recorded_++ % spans_.size())] = span;
  }

  uint64_t recorded() const { return recorded_; }
  uint64_t dropped() const { return recorded_ > spans_.size() ? recorded_ - spans_.size() : 0; }
  std::vector<Span> InOrder() const;  // the oldest that is left first

 private:
  std::vector<Span> spans_;
  uint64_t recorded_ = 0;
};

}  // namespace engine::trace
