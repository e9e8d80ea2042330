#include "resample.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace engine::images {
namespace {

// Output pixel i is the sum of weights[i * most + k] * source[begins[i] + k], k < counts[i].
struct Taps {
  int64_t most = 0;
  std::vector<int64_t> begins, counts;
  std::vector<float> weights;
};

// In the way of Pillow (src/libImaging/Resample.c, precompute_coeffs).
Taps MakeTaps(const Axis& axis, Filter filter) {
  const double reach = std::max(axis.scale, 1.0);
  const double support = (filter == Filter::kArea ? 0.5 : 1.0) * reach;
  Taps taps;
  taps.most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  taps.weights.resize(static_cast<size_t>(axis.count * taps.most));
  for (int64_t i = 0; i < axis.count; ++i) {
    const double center = axis.begin + (static_cast<double>(i) + 0.5) * axis.scale;
    // Pixels whose centres lie within the support, of those that may be looked at.
    const int64_t begin = std::clamp(static_cast<int64_t>(std::floor(center - support + 0.5)),
                                     axis.first, axis.last - 1);
    const int64_t end = std::clamp(static_cast<int64_t>(std::floor(center + support + 0.5)),
                                   begin + 1, std::min(axis.last, begin + taps.most));
    float* const weights = taps.weights.data() + i * taps.most;
    double sum = 0;
    for (int64_t k = begin; k < end; ++k) {
      const double apart = std::abs((static_cast<double>(k) - center + 0.5) / reach);
      const double weight =
          filter == Filter::kArea ? (apart <= 0.5 ? 1.0 : 0.0) : std::max(0.0, 1.0 - apart);
      weights[k - begin] = static_cast<float>(weight);
      sum += weight;
    }
    if (sum == 0) weights[0] = 1;  // one pixel, at whose edge the centre lies
    for (int64_t k = 0; k < end - begin && sum > 0; ++k) {
      weights[k] = static_cast<float>(weights[k] / sum);
    }
    taps.begins.push_back(begin);
    taps.counts.push_back(end - begin);
  }
  return taps;
}

}  // namespace

// First along the rows that are needed, then across them.
void Resample(const Image& image, const Axis& rows, const Axis& columns, Filter filter,
              float* out) {
  const Taps across = MakeTaps(columns, filter), down = MakeTaps(rows, filter);
  const int64_t channels = image.channels, width = columns.count;
  const int64_t first = down.begins.front(), last = down.begins.back() + down.counts.back();
  std::vector<float> source(static_cast<size_t>(image.columns * channels));
  std::vector<float> narrow(static_cast<size_t>((last - first) * width * channels));
  for (int64_t row = first; row < last; ++row) {
    // `narrow` has only the rows that are needed, in the width of the output.
    image.ReadRow(row, source.data());
    float* to = narrow.data() + (row - first) * width * channels;
    for (int64_t i = 0; i < width; ++i) {
      const size_t at = static_cast<size_t>(i);
      const float* const weights = across.weights.data() + i * across.most;
      for (int64_t c = 0; c < channels; ++c) {
        const float* from = source.data() + across.begins[at] * channels + c;
        float sum = 0;
        for (int64_t k = 0; k < across.counts[at]; ++k, from += channels) sum += weights[k] * *from;
        *to++ = sum;
      }
    }
  }
  const int64_t plane = rows.count * width;
  std::fill_n(out, plane * channels, 0.0f);
  for (int64_t i = 0; i < rows.count; ++i) {
    const size_t at = static_cast<size_t>(i);
    for (int64_t k = 0; k < down.counts[at]; ++k) {
      const float weight = down.weights[static_cast<size_t>(i * down.most + k)];
      const float* from = narrow.data() + (down.begins[at] + k - first) * width * channels;
      for (int64_t x = 0; x < width; ++x) {
        for (int64_t c = 0; c < channels; ++c) out[c * plane + i * width + x] += weight * *from++;
      }
    }
  }
}

}  // namespace engine::images
