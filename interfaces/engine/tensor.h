// Plain descriptions of tensors. All tensors are dense and row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>

#include "engine/abi/layout.h"
#include "engine/status.h"

namespace engine {

// The type of an element, in the byte order of the machine. kFloat32 is that of values, gradients
// and states of optimizers; kInt32 that of tokens and classes; kUint8 that of bytes that only who
// packed them understands. kFloat16 is binary16 of IEEE 754, kBFloat16 the upper half of a
// kFloat32. New types come at the end: what takes a DType refuses those that it does not know.
enum class DType : int32_t { kFloat32 = 0, kInt32 = 1, kUint8 = 2, kBFloat16 = 3, kFloat16 = 4 };

// Bytes of one element; 0 for a number that is none of them.
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

// For messages: "float32"; "unknown" for a number that is none of them. Static text.
constexpr const char* Name(DType dtype) noexcept {
  constexpr const char* kNames[] = {"float32", "int32", "uint8", "bfloat16", "float16"};
  const auto index = static_cast<size_t>(dtype);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

// Part of the layout of Shape, which cannot grow: it lies inside of other structs.
constexpr int32_t kMaxDims = 6;

// Up to six extents, outermost first; zero extents are legal (a rank without samples). A scalar has
// ndim 0. Nothing here is checked: the core checks what a plugin says (0 to kMaxDims extents above
// 0, with a size that fits) before it makes memory of it.
struct Shape {
  int64_t dims[kMaxDims] = {};  // elements; those from ndim on mean nothing
  int32_t ndim = 0;

  constexpr Shape() noexcept = default;
  // {batch, channels, rows, columns}; at most kMaxDims extents.
  constexpr Shape(std::initializer_list<int64_t> extents) noexcept {
    for (int64_t extent : extents) dims[ndim++] = extent;
  }
  // Extent i; a negative `i` counts from the back: shape[-1] is the innermost extent.
  constexpr int64_t operator[](int32_t i) const noexcept { return dims[i < 0 ? i + ndim : i]; }
  constexpr int64_t& operator[](int32_t i) noexcept { return dims[i < 0 ? i + ndim : i]; }
  // Product of the extents [begin, end); negative `end` counts from the back, so Count(0, -1) is
  // "all rows". Of no extents 1, so a scalar has one element.
  constexpr int64_t Count(int32_t begin = 0, int32_t end = kMaxDims) const noexcept {
    if (end < 0) end += ndim;
    if (end > ndim) end = ndim;
    int64_t count = 1;
    for (int32_t i = begin; i < end; ++i) count *= dims[i];
    return count;
  }
  // As many extents, and each the same.
  constexpr bool operator==(const Shape& other) const noexcept {
    if (ndim != other.ndim) return false;
    for (int32_t i = 0; i < ndim; ++i) {
      if (dims[i] != other.dims[i]) return false;
    }
    return true;
  }
};

// Borrowed memory with a shape, dense: element (i, j) of (rows, columns) is data[i * columns + j].
// Valid during the call that it is passed to. `data` may be null where a function says so, and
// where there are no elements.
struct TensorView {
  void* data = nullptr;  // of the run's device: on an Accelerator the host may not read it
  Shape shape = {};      // of this call: with the samples that there are
  DType dtype = DType::kFloat32;

  // Elements, and bytes, of the whole tensor.
  int64_t count() const noexcept { return shape.Count(); }
  size_t size_bytes() const noexcept { return static_cast<size_t>(count()) * SizeOf(dtype); }
  // The data as the type that the caller knows it to have: neither looks at dtype.
  float* f32() const noexcept { return static_cast<float*>(data); }
  int32_t* i32() const noexcept { return static_cast<int32_t*>(data); }
};

// What is known of a tensor before there is memory, at setup. When `batched`, dims[0] is a multiple
// of the number of samples: the shape given at setup is that of a full batch, and a call with fewer
// samples has a proportionally smaller dims[0], down to 0.
struct TensorSpec {
  Shape shape = {};
  DType dtype = DType::kFloat32;
  uint32_t batched = 0;  // 1: as above; 0: the shape is that of every call
};

ENGINE_LAYOUT(Shape, dims, ndim);
ENGINE_LAYOUT(TensorView, data, shape, dtype);
ENGINE_LAYOUT(TensorSpec, shape, dtype, batched);

}  // namespace engine
