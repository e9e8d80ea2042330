// The work of a step on an accelerator, recorded once and then replayed (CUDA graphs).
//
// What is recorded begins and ends with everything on one stream, so a replay does not overlap with
// the step before it.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/ext/accelerator.h"

namespace engine::exec {

// [compute-lane]
class RecordedStep {
 public:
  // Whether the step that begins is recorded: the same on all ranks, as a communicator may send
  // otherwise what is recorded. `all_samples`: of all ranks.
  bool Wants(bool enabled, int64_t all_samples);
  bool CanReplay(int64_t all_samples) const {
    return recorded_ != nullptr && all_samples == samples_;
  }
  // What is queued on `stream` between the two is recorded and not done.
  Status Begin(Accelerator& accelerator, Stream* stream);
  Status End(Accelerator& accelerator, Stream* stream, int64_t all_samples);
  Status Launch(Stream* stream) { return recorded_->Launch(stream); }
  void Drop() { recorded_.reset(); }

  bool recording() const { return recording_; }
  bool exists() const { return recorded_ != nullptr; }

 private:
  std::unique_ptr<Recording> recorded_;
  bool recording_ = false;
  uint64_t steps_ = 0;
  int64_t most_samples_ = 0, samples_ = 0;
};

}  // namespace engine::exec
