// One convolution to time, and the clock for it.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace engine::bench {

struct ConvLayer {
  const char* name;
  int64_t samples, inputs, extent, channels, kernel, stride, padding;

  int64_t output_extent() const { return (extent + 2 * padding - kernel) / stride + 1; }
  // Of one pass, padding counted as if it were multiplied.
  double gflop() const {
    return 2e-9 * static_cast<double>(samples * output_extent() * output_extent() * channels *
                                      inputs * kernel * kernel);
  }
};

// Milliseconds of the three passes.
struct ConvTimes {
  double forward = 0, data = 0, weights = 0;
};

// Processor time of this thread: what others do on the machine is not in it, but for the caches.
inline double ThreadMs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// The median over at least 7 calls and a fifth of a second.
template <typename Body>
double MedianMs(const Body& body) {
  body();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 7 || total < 200) {
    const double begin = ThreadMs();
    body();
    times.push_back(ThreadMs() - begin);
    total += times.back();
  }
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

// oneDNN's primitives with source and result in the layouts that each likes best, or in
// channels-last; its weights are always in its own layout. Reorders are not in it.
ConvTimes TimeOneDnn(const ConvLayer& layer, bool channels_last);
// To bring the weights into oneDNN's layout for one pass.
double TimeOneDnnWeightReorder(const ConvLayer& layer);
double TimeSgemm(int64_t m, int64_t n, int64_t k);

}  // namespace engine::bench
