// A recording holds addresses, so it is good as long as the memory of the model is, and sizes, so it
// is good for batches of as many samples. A step of another size is run as ever, and the next one
// of the right size is replayed again. Only one is kept: the first of the largest batch seen so far.
#include "core/exec/recorded_step.h"

#include <algorithm>

namespace engine::exec {
namespace {

// Steps before a recording: ops choose algorithms and allocate in the first ones.
constexpr uint64_t kWarmUpSteps = 3;

}  // namespace

bool RecordedStep::Wants(bool enabled, int64_t all_samples) {
  ++steps_;
  most_samples_ = std::max(most_samples_, all_samples);
  return enabled && recorded_ == nullptr && steps_ > kWarmUpSteps && all_samples == most_samples_;
}

Status RecordedStep::Begin(Accelerator& accelerator, Stream* stream) {
  ENGINE_RETURN_IF_ERROR(accelerator.BeginRecording(stream));
  recording_ = true;
  return {};
}

Status RecordedStep::End(Accelerator& accelerator, Stream* stream, int64_t all_samples) {
  recording_ = false;
  Recording* recorded = nullptr;
  const Status ended = accelerator.EndRecording(stream, &recorded);
  recorded_.reset(recorded);
  samples_ = all_samples;
  return ended;
}

}  // namespace engine::exec
