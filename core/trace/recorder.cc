#include "core/trace/recorder.h"

#include <algorithm>

namespace engine::trace {

std::vector<Span> SpanRecorder::InOrder() const {
  if (recorded_ <= spans_.size()) {
    return {spans_.begin(), spans_.begin() + static_cast<ptrdiff_t>(recorded_)};
  }
  std::vector<Span> spans(spans_.size());
  const auto oldest = spans_.begin() + static_cast<ptrdiff_t>(recorded_ % spans_.size());
  std::rotate_copy(spans_.begin(), oldest, spans_.end(), spans.begin());
  return spans;
}

}  // namespace engine::trace
