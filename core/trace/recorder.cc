#include "core/trace/recorder.h"

#include <algorithm>

namespace engine::trace {

std::vector<Span> SpanRecorder::InOrder() const {
  std::vector<Span> spans = spans_;
  if (recorded_ < spans.size()) spans.resize(recorded_);
  if (dropped() == 0) return spans;
  const auto oldest = spans.begin() + static_cast<ptrdiff_t>(recorded_ % spans.size());
  std::rotate(spans.begin(), oldest, spans.end());
  return spans;
}

}  // namespace engine::trace
