// A map is first brought to as few axes as describe it. One that combines has the axes of its result
// first, then those it combines over ("rows"), which are cut into parts where the result is small.
#include "kernels/packs.h"
#include "kernels/reduce.h"
#include "kernels/strided.h"

namespace engine::cuda_ops {
namespace {

constexpr int64_t kScratchFloats = kStridedScratchBytes / static_cast<int64_t>(sizeof(float));

// Calls body with the function as a callable, so that a loop within has no choice to make.
template <typename Body>
__device__ inline void WithFunction(MapFunction function, float p, const Body& body) {
  switch (function) {
    case MapFunction::kScale:
      return body([p](float a, float, float) { return p * a; });
    case MapFunction::kThird:
      return body([p](float, float, float c) { return p * c; });
    case MapFunction::kAdd:
      return body([](float a, float b, float) { return a + b; });
    case MapFunction::kSubtract:
      return body([](float a, float b, float) { return a - b; });
    case MapFunction::kMultiply:
      return body([](float a, float b, float) { return a * b; });
    case MapFunction::kDivide:
      return body([](float a, float b, float) { return a / b; });
    case MapFunction::kMaximum:
      return body([](float a, float b, float) { return a > b || a != a ? a : b; });
    case MapFunction::kMinimum:
      return body([](float a, float b, float) { return a < b || a != a ? a : b; });
    case MapFunction::kPower:
      return body([](float a, float b, float) { return powf(a, b); });
    case MapFunction::kPrelu:
      return body([](float a, float b, float) { return a > 0.0f ? a : b * a; });
    case MapFunction::kWhere:
      return body([](float a, float b, float c) { return a != 0.0f ? b : c; });
    case MapFunction::kWhereSlope:
      return body([](float a, float, float c) { return a != 0.0f ? c : 0.0f; });
    case MapFunction::kWhereSlopeOther:
      return body([](float a, float, float c) { return a != 0.0f ? 0.0f : c; });
    case MapFunction::kTimesThird:
      return body([](float, float b, float c) { return b * c; });
    case MapFunction::kFirstTimesThird:
      return body([](float a, float, float c) { return a * c; });
    case MapFunction::kOverSecond:
      return body([](float, float b, float c) { return c / b; });
    case MapFunction::kQuotientSlope:
      return body([](float a, float b, float c) { return -c * (a / b) / b; });
    case MapFunction::kMaximumSlope:
    case MapFunction::kMinimumSlopeSecond:
      return body([](float a, float b, float c) { return a > b ? c : (a == b ? c / 2 : 0.0f); });
    case MapFunction::kMinimumSlope:
    case MapFunction::kMaximumSlopeSecond:
      return body([](float a, float b, float c) { return a < b ? c : (a == b ? c / 2 : 0.0f); });
    case MapFunction::kPowerSlope:
      return body(
          [](float a, float b, float c) { return b == 0.0f ? 0.0f : c * b * powf(a, b - 1.0f); });
    case MapFunction::kPowerSlopeExponent:
      return body([](float a, float b, float c) {
        return a == 0.0f && b >= 0.0f ? 0.0f : c * powf(a, b) * logf(a);
      });
    case MapFunction::kPreluSlope:
      return body([](float a, float b, float c) { return a > 0.0f ? c : b * c; });
    case MapFunction::kPreluSlopeSecond:
      return body([](float a, float, float c) { return a > 0.0f ? 0.0f : a * c; });
    case MapFunction::kEqual:
      return body([](float a, float b, float) { return a == b ? 1.0f : 0.0f; });
    case MapFunction::kWhereEqual:
      return body([](float a, float b, float c) { return a == b ? c : 0.0f; });
  }
}

struct Offsets {
  int64_t in[3], out;
};

// Moves `offsets` to element `index` of the axes [first, last).
template <typename Index>
__device__ inline void Advance(const StridedMap& map, int first, int last, Index index,
                               Offsets* offsets) {
#pragma unroll
  for (int axis = kMaxAxes - 1; axis >= 0; --axis) {
    if (axis < first || axis >= last) continue;
    const auto extent = static_cast<Index>(map.extents[axis]);
    const Index rest = axis == first ? 0 : index / extent;
    const auto at = static_cast<int64_t>(index - rest * extent);
    for (int i = 0; i < 3; ++i) offsets->in[i] += at * map.in[i].strides[axis];
    offsets->out += at * map.out.strides[axis];
    index = rest;
  }
}

// kPack elements along the last axis.
template <int kPack>
__device__ inline void LoadRun(const StridedTensor& tensor, int64_t offset, int64_t stride,
                               float (&values)[kPack]) {
  if (tensor.data == nullptr) {
    for (int j = 0; j < kPack; ++j) values[j] = 0;
    return;
  }
  const auto load = [&](const auto* data) {
    if (kPack > 1 && stride != 0) return LoadFloats<kPack>(data + offset, values);
    const float value = ToFloat(data[offset]);
    for (int j = 0; j < kPack; ++j) values[j] = value;
  };
  tensor.bf16 ? load(static_cast<const Bf16*>(tensor.data))
              : load(static_cast<const float*>(tensor.data));
}

template <int kPack>
__device__ inline void PutRun(const StridedTensor& tensor, int64_t offset, bool sum,
                              const float (&values)[kPack]) {
  if (tensor.bf16) {
    PutPack<kPack>(static_cast<Bf16*>(tensor.data) + offset, values, sum);
  } else {
    PutPack<kPack>(static_cast<float*>(tensor.data) + offset, values, sum);
  }
}

// A run of kPack elements of the last axis for each thread.
template <int kPack, typename Index>
__global__ void MapKernel(const StridedMap map, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  Offsets at = {};
  Advance(map, 0, map.axes, static_cast<Index>(i * kPack), &at);
  const int last = map.axes - 1;
  float a[kPack], b[kPack], c[kPack];
  LoadRun<kPack>(map.in[0], at.in[0], map.in[0].strides[last], a);
  LoadRun<kPack>(map.in[1], at.in[1], map.in[1].strides[last], b);
  LoadRun<kPack>(map.in[2], at.in[2], map.in[2].strides[last], c);
  WithFunction(map.function, map.p, [&](const auto& function) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) a[j] = function(a[j], b[j], c[j]);
  });
  PutRun<kPack>(map.out, at.out, map.sum, a);
}

// What combines into what: `kept` axes of results, and `rows` of each, in `parts`.
struct Combination {
  StridedMap map;
  int32_t kept_axes;
  int64_t kept, rows, parts;
  float* partials;  // (parts, kept); null: results are written
};

__device__ inline float Combined(bool largest, float a, float b) {
  if (!largest) return a + b;
  return a > b || a != a ? a : b;
}
__device__ inline float Neutral(bool largest) {
  return largest ? -INFINITY : 0.0f;
}

// Of element `index` of the result, over rows begin, begin + step, ... below `end`.
template <typename Index>
__device__ inline float Combine(const Combination& of, Index index, int64_t begin, int64_t end,
                                int64_t step, int64_t* out) {
  const StridedMap& map = of.map;
  Offsets start = {};
  Advance(map, 0, of.kept_axes, index, &start);
  *out = start.out;
  float all = Neutral(map.largest);
  WithFunction(map.function, map.p, [&](const auto& function) {
    for (int64_t row = begin; row < end; row += step) {
      Offsets at = start;
      Advance(map, of.kept_axes, map.axes, static_cast<Index>(row), &at);
      float a[1], b[1], c[1];
      LoadRun<1>(map.in[0], at.in[0], 0, a);
      LoadRun<1>(map.in[1], at.in[1], 0, b);
      LoadRun<1>(map.in[2], at.in[2], 0, c);
      all = Combined(map.largest, all, function(a[0], b[0], c[0]));
    }
  });
  return all;
}

__device__ inline void PutResult(const Combination& of, int64_t part, int64_t index, int64_t out,
                                 float value) {
  if (of.partials != nullptr) {
    of.partials[part * of.kept + index] = value;
    return;
  }
  const float values[1] = {value};
  PutRun<1>(of.map.out, out, of.map.sum, values);
}

// Neighbours in memory are rows of one result: a warp has a part of a result.
template <typename Index>
__global__ void CombineByWarp(const Combination of) {
  const int64_t index = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t part = blockIdx.y, lane = threadIdx.x % kWarp;
  if (index >= of.kept) return;  // the whole warp
  int64_t out = 0;
  const float own = Combine(of, static_cast<Index>(index), of.rows * part / of.parts + lane,
                            of.rows * (part + 1) / of.parts, kWarp, &out);
  const bool largest = of.map.largest;
  const float all =
      WarpReduce(own, [largest](float a, float b) { return Combined(largest, a, b); });
  if (lane == 0) PutResult(of, part, index, out, all);
}

// Neighbours in memory are of several results: a thread has a part of one.
template <typename Index>
__global__ void CombineByThread(const Combination of) {
  const int64_t index = ThreadIndex(), part = blockIdx.y;
  if (index >= of.kept) return;
  int64_t out = 0;
  const float own = Combine(of, static_cast<Index>(index), of.rows * part / of.parts,
                            of.rows * (part + 1) / of.parts, 1, &out);
  PutResult(of, part, index, out, own);
}

__global__ void CombineParts(Combination of) {
  const int64_t index = ThreadIndex();
  if (index >= of.kept) return;
  Offsets at = {};
  Advance(of.map, 0, of.kept_axes, static_cast<uint64_t>(index), &at);
  float all = Neutral(of.map.largest);
  for (int64_t part = 0; part < of.parts; ++part) {
    all = Combined(of.map.largest, all, of.partials[part * of.kept + index]);
  }
  const float values[1] = {all};
  PutRun<1>(of.map.out, at.out, of.map.sum, values);
}

// Axes in the order of `order`.
void Reorder(const int32_t (&order)[kMaxAxes], StridedMap* map) {
  const StridedMap before = *map;
  for (int32_t axis = 0; axis < map->axes; ++axis) {
    map->extents[axis] = before.extents[order[axis]];
    for (int i = 0; i < 3; ++i) map->in[i].strides[axis] = before.in[i].strides[order[axis]];
    map->out.strides[axis] = before.out.strides[order[axis]];
  }
}

bool IsCombined(const StridedMap& map, int32_t axis) {
  return map.out.strides[axis] == 0 && map.extents[axis] != 1;
}

// Results first; then, axes of one element go, and those that are one axis for all tensors become
// one. How many axes of results there are then.
int32_t Simplify(StridedMap* map) {
  int32_t order[kMaxAxes] = {}, count = 0;
  for (const bool combined : {false, true}) {
    for (int32_t axis = 0; axis < map->axes; ++axis) {
      const bool is_one = map->extents[axis] == 1;
      if (!is_one && IsCombined(*map, axis) == combined) order[count++] = axis;
    }
  }
  map->axes = count;
  Reorder(order, map);
  int32_t last = 0, kept = 0;
  for (int32_t axis = 0; axis < map->axes; ++axis) {
    bool joins = axis > 0 && IsCombined(*map, axis) == IsCombined(*map, last);
    const auto fits = [&](const StridedTensor& tensor) {
      return tensor.strides[last] == tensor.strides[axis] * map->extents[axis];
    };
    for (const StridedTensor& tensor : map->in) joins = joins && fits(tensor);
    joins = joins && fits(map->out);
    if (axis > 0 && !joins) ++last;
    const int64_t before = joins ? map->extents[last] : 1;
    for (StridedTensor& tensor : map->in) tensor.strides[last] = tensor.strides[axis];
    map->out.strides[last] = map->out.strides[axis];
    map->extents[last] = before * map->extents[axis];
  }
  if (map->axes > 0) map->axes = last + 1;
  while (kept < map->axes && !IsCombined(*map, kept)) ++kept;
  return kept;
}

// Whether runs of kPack elements of the last axis can be moved at once.
template <int kPack>
bool IsRun(const StridedMap& map, const StridedTensor& tensor, bool is_target) {
  const int32_t last = map.axes - 1;
  if (tensor.data == nullptr || (!is_target && tensor.strides[last] == 0)) return true;
  const size_t bytes = kPack * (tensor.bf16 ? sizeof(Bf16) : sizeof(float));
  bool runs = tensor.strides[last] == 1 && reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0;
  for (int32_t axis = 0; axis < last; ++axis) runs = runs && tensor.strides[axis] % kPack == 0;
  return runs;
}

cudaError_t LaunchMap(const StridedMap& map, int64_t count, cudaStream_t stream) noexcept {
  constexpr int kPack = 4;
  bool runs = map.extents[map.axes - 1] % kPack == 0 && IsRun<kPack>(map, map.out, true);
  for (const StridedTensor& tensor : map.in) runs = runs && IsRun<kPack>(map, tensor, false);
  const bool small = count < INT32_MAX;
  if (runs) {
    return ForEach(count / kPack, small ? MapKernel<kPack, uint32_t> : MapKernel<kPack, uint64_t>,
                   stream, map);
  }
  return ForEach(count, small ? MapKernel<1, uint32_t> : MapKernel<1, uint64_t>, stream, map);
}

cudaError_t LaunchCombination(Combination of, float* scratch, cudaStream_t stream) noexcept {
  constexpr int64_t kMinRows = 32;  // of a part
  const int64_t room = kScratchFloats / of.kept, wanted = of.rows / kMinRows;
  of.parts = room < wanted ? room : wanted;
  if (of.parts > 1 << 15) of.parts = 1 << 15;
  if (of.parts < 2) of.parts = 1;
  of.partials = of.parts > 1 ? scratch : nullptr;
  const int32_t last = of.map.axes - 1;
  bool rows_lie_together = of.kept_axes == 0;
  for (const StridedTensor& tensor : of.map.in) rows_lie_together |= tensor.strides[last] == 1;
  const bool small = of.kept < INT32_MAX && of.rows < INT32_MAX;
  const auto by_warp = small ? CombineByWarp<uint32_t> : CombineByWarp<uint64_t>;
  const auto by_thread = small ? CombineByThread<uint32_t> : CombineByThread<uint64_t>;
  const unsigned blocks = BlocksFor(of.kept, rows_lie_together ? kThreads / kWarp : kThreads);
  const cudaError_t error =
      Launch(rows_lie_together ? by_warp : by_thread, dim3(blocks, static_cast<unsigned>(of.parts)),
             dim3(kThreads), 0, stream, of);
  if (error != cudaSuccess || of.partials == nullptr) return error;
  return Launch(CombineParts, dim3(BlocksFor(of.kept, kThreads)), dim3(kThreads), 0, stream, of);
}

}  // namespace

cudaError_t LaunchStrided(const StridedMap& of, void* scratch, cudaStream_t stream) noexcept {
  StridedMap map = of;
  const int32_t kept_axes = Simplify(&map);
  int64_t kept = 1, rows = 1;
  for (int32_t axis = 0; axis < map.axes; ++axis) {
    (axis < kept_axes ? kept : rows) *= map.extents[axis];
  }
  if (kept == 0) return cudaSuccess;
  if (map.axes == 0) {  // one element
    map.axes = 1;
    map.extents[0] = 1;
  } else if (kept_axes < map.axes) {
    return LaunchCombination({map, kept_axes, kept, rows}, static_cast<float*>(scratch), stream);
  }
  return LaunchMap(map, kept, stream);
}

}  // namespace engine::cuda_ops
