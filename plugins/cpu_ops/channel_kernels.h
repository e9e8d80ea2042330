// Passes over rows of channels, (rows, C): sums of each channel over rows, and functions of an
// element and a few numbers of its channel. Kernels are serial; [begin, end) is a range of rows.
//
// A mean is held as the sum of two floats, high + low: x - high is exact or nearly so for the x
// that are near the mean, so a large mean costs no digits, and `low` is worked into another
// coefficient. Elements, T, are floats or BFloat16.
#pragma once

#include <cstdint>

namespace engine::cpu_ops {

// Rows that are taken together; a range of a multiple of them has no slow rest.
constexpr int64_t kRowGroup = 8;

// Where a part of the rows leaves its sums, C of each.
struct ChannelSums {
  double* first;   // Moments: mean;                        GradientSums: sum of dy
  double* second;  // Moments: sum of squared deviations;   GradientSums: sum of dy (x - high)
  float* scratch;  // 3 C
};

// Mean and sum of squared deviations from it, to float precision relative to the deviation, however
// large the mean is beside it. Zeros when there are no rows.
template <typename T>
void Moments(const T* x, int64_t channels, int64_t begin, int64_t end, const ChannelSums& sums);

// Mean and squares of `count` numbers become those of these and `other_count` others (Chan, Golub
// and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979).
void MergeMoments(double* mean, double* squares, double count, double other_mean,
                  double other_squares, double other_count);

template <typename T>
void GradientSums(const T* x, const T* dy, const float* high, int64_t channels, int64_t begin,
                  int64_t end, const ChannelSums& sums);

// y = (x - high) scale + shift.
template <typename T>
struct Normalization {
  const T* x;
  T* y;
  const float *high, *scale, *shift;  // of each channel
  int64_t channels;
};
template <typename T>
void Normalize(const Normalization<T>& rows, int64_t begin, int64_t end);

// dx = ((dy weight - offset) - (x - high) slope) scale.
template <typename T>
struct NormalizationGradient {
  const T* x;
  const T* dy;
  T* dx;
  bool sum;                                    // add to dx
  const float *high, *offset, *slope, *scale;  // of each channel
  int64_t channels;
  const float* weight = nullptr;  // of each channel; null: 1
};
template <typename T>
void NormalizeBackward(const NormalizationGradient<T>& rows, int64_t begin, int64_t end);

// sums[c] becomes, or has added when `sum`, the sum of channel c of y (rows, channels): the gradient of
// a bias. Not serial: threads share the channels, so the order does not depend on their number.
template <typename T>
void SumColumns(const T* y, int64_t rows, int64_t channels, float* sums, bool sum) noexcept;

}  // namespace engine::cpu_ops
