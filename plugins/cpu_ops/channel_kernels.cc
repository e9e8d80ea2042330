#include "channel_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

// Rows whose sums are kept in float; every so often they go into doubles.
constexpr int64_t kBlock = 256;

// Calls body(row, count) for the groups of rows [begin, end); count is a constant for all but the
// last. Coefficients and partial sums are loaded once for all rows of a group, and the memory that
// is walked over is contiguous for any number of channels.
template <typename Body>
CPU_OPS_INLINE void ForGroups(int64_t begin, int64_t end, const Body& body) noexcept {
  for (; begin + kRowGroup <= end; begin += kRowGroup) {
    body(begin, std::integral_constant<int64_t, kRowGroup>{});
  }
  if (begin < end) body(begin, end - begin);
}

// Adds to first and second, of each channel, the sums over rows [begin, end) of the two terms that
// term(columns, channel, index of the element) gives as a pair.
template <typename V, typename Term>
CPU_OPS_INLINE void AddTerms(int64_t channels, int64_t begin, int64_t end, float* first,
                             float* second, const Term& term) noexcept {
  ForGroups(begin, end, [&](int64_t row, auto count) CPU_OPS_INLINE_LAMBDA {
    ForColumns<V>(channels, [&]<typename T>(T, int64_t c) CPU_OPS_INLINE_LAMBDA {
      T sums = {}, others = {};
      for (int64_t r = 0; r < count; ++r) term(c, (row + r) * channels + c, &sums, &others);
      StoreAs(first + c, LoadAs<T>(first + c) + sums);
      StoreAs(second + c, LoadAs<T>(second + c) + others);
    });
  });
}

CPU_OPS_INLINE void Zero(float* values, int64_t count) noexcept {
  std::memset(values, 0, static_cast<size_t>(count) * sizeof(float));
}

CPU_OPS_INLINE void Zero(const ChannelSums& sums, int64_t channels) noexcept {
  for (double* values : {sums.first, sums.second}) {
    std::memset(values, 0, static_cast<size_t>(channels) * sizeof(double));
  }
}

CPU_OPS_INLINE void Merge(double* mean, double* squares, double count, double other_mean,
                          double other_squares, double other_count) noexcept {
  const double all = count + other_count;
  const double difference = other_mean - *mean;
  *mean += difference * (other_count / all);
  *squares += other_squares + difference * difference * (count * other_count / all);
}

// The mean of the rows [begin, end), roughly: with the rounding of a short sum of floats.
template <typename T>
CPU_OPS_INLINE void RoughMean(const T* x, int64_t channels, int64_t begin, int64_t end,
                              float* mean) noexcept {
  Zero(mean, channels);
  const float share = 1.0f / static_cast<float>(end - begin);
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t c = 0; c < channels; ++c) mean[c] += x[row * channels + c] * share;
  }
}

// sums[j] += the sum of column j of y (rows, width), for j in [begin, end). Four rows at a time:
// that quarters the traffic on `sums`, and the length of the chain of roundings.
template <typename T>
CPU_OPS_KERNEL void AddColumns(const T* y, int64_t rows, int64_t width, float* sums, int64_t begin,
                               int64_t end) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4, y += 4 * width) {
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) {
      sums[j] += (y[j] + y[width + j]) + (y[2 * width + j] + y[3 * width + j]);
    }
  }
  for (; row < rows; ++row, y += width) {
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) sums[j] += y[j];
  }
}

}  // namespace

// Sums of x - k and (x - k)^2 give the moments of a block, and lose digits when its mean is far
// from k in terms of its deviation. k is the mean of the rows before, and a block is at most as
// large as all of those: then what the block loses is below the squares that its distance from them
// adds to the total. For the first block, k is its own mean.
template <typename Element>
void Moments(const Element* x, int64_t channels, int64_t begin, int64_t end,
             const ChannelSums& sums) {
  ForProcessor([&]<typename V>(V) CPU_OPS_INLINE_LAMBDA {
    float* shift = sums.scratch;
    float* linear = shift + channels;
    float* square = linear + channels;
    Zero(sums, channels);
    if (begin == end) return;
    RoughMean(x, channels, begin, std::min(begin + kRowGroup, end), shift);
    for (int64_t row = begin; row < end;) {
      const int64_t seen = row - begin;
      const int64_t rows = std::min(std::clamp(seen, kRowGroup, kBlock), end - row);
      Zero(linear, 2 * channels);
      AddTerms<V>(channels, row, row + rows, linear, square,
                  [&]<typename T>(int64_t c, int64_t i, T* first, T* second) CPU_OPS_INLINE_LAMBDA {
                    const T difference = LoadAs<T>(x + i) - LoadAs<T>(shift + c);
                    *first += difference;
                    *second += difference * difference;
                  });
      const auto n = static_cast<double>(rows), before = static_cast<double>(seen);
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        const double offset = static_cast<double>(linear[c]) / n;
        const double spread = static_cast<double>(square[c]) - offset * offset * n;
        Merge(&sums.first[c], &sums.second[c], before, static_cast<double>(shift[c]) + offset,
              spread < 0.0 ? 0.0 : spread, n);  // NaN stays
        shift[c] = static_cast<float>(sums.first[c]);
      }
      row += rows;
    }
  });
}

void MergeMoments(double* mean, double* squares, double count, double other_mean,
                  double other_squares, double other_count) {
  if (other_count > 0.0) Merge(mean, squares, count, other_mean, other_squares, other_count);
}

template <typename Element>
void GradientSums(const Element* x, const Element* dy, const float* high, int64_t channels,
                  int64_t begin, int64_t end, const ChannelSums& sums) {
  ForProcessor([&]<typename V>(V) CPU_OPS_INLINE_LAMBDA {
    float* linear = sums.scratch;
    float* product = linear + channels;
    Zero(sums, channels);
    for (int64_t row = begin; row < end; row += kBlock) {
      Zero(linear, 2 * channels);
      AddTerms<V>(channels, row, std::min(row + kBlock, end), linear, product,
                  [&]<typename T>(int64_t c, int64_t i, T* first, T* second) CPU_OPS_INLINE_LAMBDA {
                    const T gradient = LoadAs<T>(dy + i);
                    *first += gradient;
                    *second += gradient * (LoadAs<T>(x + i) - LoadAs<T>(high + c));
                  });
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        sums.first[c] += static_cast<double>(linear[c]);
        sums.second[c] += static_cast<double>(product[c]);
      }
    }
  });
}

template <typename Element>
void Normalize(const Normalization<Element>& rows, int64_t begin, int64_t end) {
  ForProcessor([&]<typename V>(V) CPU_OPS_INLINE_LAMBDA {
    const int64_t channels = rows.channels;
    const Element* x = rows.x;
    Element* y = rows.y;
    ForGroups(begin, end, [&](int64_t row, auto count) CPU_OPS_INLINE_LAMBDA {
      ForColumns<V>(channels, [&]<typename T>(T, int64_t c) CPU_OPS_INLINE_LAMBDA {
        const T high = LoadAs<T>(rows.high + c), scale = LoadAs<T>(rows.scale + c);
        const T shift = LoadAs<T>(rows.shift + c);
        for (int64_t r = 0; r < count; ++r) {
          const int64_t i = (row + r) * channels + c;
          StoreAs(y + i, (LoadAs<T>(x + i) - high) * scale + shift);
        }
      });
    });
  });
}

template <typename Element>
void NormalizeBackward(const NormalizationGradient<Element>& rows, int64_t begin, int64_t end) {
  ForProcessor([&]<typename V>(V) CPU_OPS_INLINE_LAMBDA {
    const int64_t channels = rows.channels;
    const Element* x = rows.x;
    const Element* dy = rows.dy;
    Element* dx = rows.dx;
    ForGroups(begin, end, [&](int64_t row, auto count) CPU_OPS_INLINE_LAMBDA {
      ForColumns<V>(channels, [&]<typename T>(T, int64_t c) CPU_OPS_INLINE_LAMBDA {
        const T high = LoadAs<T>(rows.high + c), offset = LoadAs<T>(rows.offset + c);
        const T slope = LoadAs<T>(rows.slope + c), scale = LoadAs<T>(rows.scale + c);
        const T weight = rows.weight != nullptr ? LoadAs<T>(rows.weight + c) : T{} + 1.0f;
        for (int64_t r = 0; r < count; ++r) {
          const int64_t i = (row + r) * channels + c;
          const T difference = LoadAs<T>(x + i) - high;
          T gradient = ((LoadAs<T>(dy + i) * weight - offset) - difference * slope) * scale;
          if (rows.sum) gradient += LoadAs<T>(dx + i);
          StoreAs(dx + i, gradient);
        }
      });
    });
  });
}

template <typename T>
void SumColumns(const T* y, int64_t rows, int64_t width, float* sums, bool sum) noexcept {
  const int32_t parts = PartCount(rows * width, kElementGrain);
  ForEachPart(parts, width, kLine, [&](int32_t, int64_t begin, int64_t end) {
    if (!sum) std::memset(sums + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    AddColumns(y, rows, width, sums, begin, end);
  });
}

#define CPU_OPS_CHANNEL_KERNELS(T)                                                        \
  template void Moments(const T*, int64_t, int64_t, int64_t, const ChannelSums&);         \
  template void GradientSums(const T*, const T*, const float*, int64_t, int64_t, int64_t, \
                             const ChannelSums&);                                         \
  template void Normalize(const Normalization<T>&, int64_t, int64_t);                     \
  template void NormalizeBackward(const NormalizationGradient<T>&, int64_t, int64_t);     \
  template void SumColumns(const T*, int64_t, int64_t, float*, bool) noexcept;
CPU_OPS_CHANNEL_KERNELS(float)
CPU_OPS_CHANNEL_KERNELS(BFloat16)

}  // namespace engine::cpu_ops
