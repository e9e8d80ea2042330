#include "kernels/axis_map.h"
#include "kernels/packs.h"

namespace engine::cuda_ops {
namespace {

// A thread has an element of y and visits all that it is a sum of, in the order of the tables.
template <typename From, typename To>
__global__ void AxisMapKernel(const AxisMap map, const From* x, To* y, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  int32_t begins[kMaxAxes], counts[kMaxAxes];
  int64_t origin = 0, rest = index, terms = 1;
#pragma unroll
  for (int axis = kMaxAxes - 1; axis >= 0; --axis) {
    begins[axis] = 0;
    counts[axis] = 1;
    if (axis >= map.axes) continue;
    const int64_t at = rest % map.extents[axis];
    rest /= map.extents[axis];
    const AxisTable& table = map.tables[axis];
    if (table.begins == nullptr) {
      origin += at * map.strides[axis];
      continue;
    }
    begins[axis] = table.begins[at];
    counts[axis] = table.begins[at + 1] - begins[axis];
    terms *= counts[axis];
  }
  float total = terms == 0 ? map.value : 0.0f;
  for (int64_t term = 0; term < terms; ++term) {
    auto left = static_cast<int32_t>(term);
    int64_t place = origin;
    float share = 1;
#pragma unroll
    for (int axis = kMaxAxes - 1; axis >= 0; --axis) {
      if (axis >= map.axes || map.tables[axis].begins == nullptr) continue;
      const int32_t j = begins[axis] + left % counts[axis];
      left /= counts[axis];
      place += map.tables[axis].places[j] * map.strides[axis];
      share *= map.tables[axis].shares[j];
    }
    total += share * ToFloat(x[place]);
  }
  y[index] = FromFloat<To>(map.sum ? ToFloat(y[index]) + total : total);
}

}  // namespace

template <typename From, typename To>
cudaError_t LaunchAxisMap(const AxisMap& map, const From* x, To* y, cudaStream_t stream) noexcept {
  int64_t count = 1;
  for (int32_t axis = 0; axis < map.axes; ++axis) count *= map.extents[axis];
  return ForEach(count, AxisMapKernel<From, To>, stream, map, x, y);
}

template cudaError_t LaunchAxisMap(const AxisMap&, const float*, float*, cudaStream_t) noexcept;
template cudaError_t LaunchAxisMap(const AxisMap&, const Bf16*, Bf16*, cudaStream_t) noexcept;
template cudaError_t LaunchAxisMap(const AxisMap&, const Bf16*, float*, cudaStream_t) noexcept;
template cudaError_t LaunchAxisMap(const AxisMap&, const float*, Bf16*, cudaStream_t) noexcept;

}  // namespace engine::cuda_ops
