// What the recorder, which is always on, costs for each task of a step: one span and its two looks
// at the clock.
//
//   cmake -S . -B build/bench -DENGINE_BENCH=ON -DCMAKE_BUILD_TYPE=Release
//   cmake --build build/bench --target record_cost && build/bench/bench/record_cost
#include <algorithm>
#include <cstdio>
#include <vector>

#include "core/base/clock.h"
#include "core/trace/recorder.h"

int main() {
  constexpr int kRounds = 15;
  constexpr uint32_t kSpans = 1000000;
  engine::trace::SpanRecorder recorder(1 << 16);
  std::vector<double> ns_per_span;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t begin = engine::base::NowNs();
    for (uint32_t i = 0; i < kSpans; ++i) {
      const int64_t started = engine::base::NowNs();
      recorder.Record({.task = i, .begin_ns = started, .end_ns = engine::base::NowNs()});
    }
    ns_per_span.push_back(static_cast<double>(engine::base::NowNs() - begin) / kSpans);
  }
  std::sort(ns_per_span.begin(), ns_per_span.end());
  std::printf("%.1f ns per span (smallest %.1f, largest %.1f, of %d rounds)\n",
              ns_per_span[kRounds / 2], ns_per_span.front(), ns_per_span.back(), kRounds);
  return recorder.recorded() == uint64_t{kRounds} * kSpans ? 0 : 1;
}
