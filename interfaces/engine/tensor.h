// Plain descriptions of tensors. All tensors are dense and row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>

#include "engine/abi/layout.h"
#include "engine/status.h"

namespace engine {

enum class DType : int32_t { kFloat32 = 0, kInt32 = 1, kUint8 = 2, kBFloat16 = 3, kFloat16 = 4 };

constexpr size_t SizeOf(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kUint8:
      return 1;
  }
  return 0;
}

constexpr const char* Name(DType dtype) noexcept {
  constexpr const char* kNames[] = {"float32", "int32", "uint8", "bfloat16", "float16"};
  const auto index = static_cast<size_t>(dtype);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

constexpr int32_t kMaxDims = 6;

// Up to six extents, outermost first; zero extents are legal (a rank without samples). A scalar has
// ndim 0.
struct Shape {
  int64_t dims[kMaxDims] = {};
  int32_t ndim = 0;

  constexpr Shape() noexcept = default;
  constexpr Shape(std::initializer_list<int64_t> extents) noexcept {
    for (int64_t extent : extents) dims[ndim++] = extent;
  }
  constexpr int64_t operator[](int32_t i) const noexcept { return dims[i < 0 ? i + ndim : i]; }
  constexpr int64_t& operator[](int32_t i) noexcept { return dims[i < 0 ? i + ndim : i]; }
  // Product of the extents [begin, end); negative `end` counts from the back, so Count(0, -1) is
  // "all rows".
  constexpr int64_t Count(int32_t begin = 0, int32_t end = kMaxDims) const noexcept {
    if (end < 0) end += ndim;
    if (end > ndim) end = ndim;
    int64_t count = 1;
    for (int32_t i = begin; i < end; ++i) count *= dims[i];
    return count;
  }
  constexpr bool operator==(const Shape& other) const noexcept {
    if (ndim != other.ndim) return false;
    for (int32_t i = 0; i < ndim; ++i) {
      if (dims[i] != other.dims[i]) return false;
    }
    return true;
  }
};

// Borrowed memory with a shape. `data` may be null where a function says so.
struct TensorView {
  void* data = nullptr;
  Shape shape = {};
  DType dtype = DType::kFloat32;

  int64_t count() const noexcept { return shape.Count(); }
  size_t size_bytes() const noexcept { return static_cast<size_t>(count()) * SizeOf(dtype); }
  float* f32() const noexcept { return static_cast<float*>(data); }
  int32_t* i32() const noexcept { return static_cast<int32_t*>(data); }
};

// What is known of a tensor before there is memory. When `batched`, dims[0] is a multiple of the
// number of samples: the shape given at setup is that of a full batch, and a call with fewer
// samples has a proportionally smaller dims[0], down to 0.
struct TensorSpec {
  Shape shape = {};
  DType dtype = DType::kFloat32;
  uint32_t batched = 0;
};

ENGINE_LAYOUT(Shape, dims, ndim);
ENGINE_LAYOUT(TensorView, data, shape, dtype);
ENGINE_LAYOUT(TensorSpec, shape, dtype, batched);

}  // namespace engine
