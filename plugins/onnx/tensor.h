// A constant of the model: what shape arithmetic is made of, masks and tables.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace engine::onnx {

using Dims = std::vector<int64_t>;

inline int64_t Count(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// As Count; -1 for what can be no shape: a negative extent, or too many elements.
inline int64_t CheckedCount(const Dims& dims) {
  int64_t count = 1;
  for (const int64_t extent : dims) {
    const bool wrong = extent < 0 || __builtin_mul_overflow(count, extent, &count);
    if (wrong || count >> 40 != 0) return -1;
  }
  return count;
}

// Row-major. Values of all types are doubles, which hold integers to 2^53: extents and positions are
// smaller, and the largest int64, which marks an open end, stays beyond all of them.
struct Tensor {
  enum class Type { kFloat, kInt, kBool };

  Type type = Type::kFloat;
  Dims dims;
  std::vector<double> values;

  int64_t count() const { return Count(dims); }
  // The values as integers; what is beyond their range, or no number, is at its end.
  Dims Ints() const {
    constexpr double kEnd = 9e18;
    Dims ints;
    for (const double value : values) {
      ints.push_back(value >= kEnd   ? INT64_MAX
                     : value > -kEnd ? static_cast<int64_t>(value)
                                     : INT64_MIN);
    }
    return ints;
  }
  bool operator<(const Tensor& other) const {
    if (type != other.type) return type < other.type;
    if (dims != other.dims) return dims < other.dims;
    return values < other.values;
  }
};

}  // namespace engine::onnx
