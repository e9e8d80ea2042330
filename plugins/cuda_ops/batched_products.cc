#include "batched_products.h"

namespace engine::cuda_ops {
namespace {

struct Strides {
  int64_t *a, *b, *d;
};
Strides StridesOf(BatchedProduct* product, int32_t axis) noexcept {
  return {&product->a.strides[axis], &product->b.strides[axis], &product->d.strides[axis]};
}

void RemoveAxis(int32_t axis, BatchedProduct* product) noexcept {
  --product->axes;
  for (int32_t i = axis; i < product->axes; ++i) {
    product->extents[i] = product->extents[i + 1];
    const Strides to = StridesOf(product, i), from = StridesOf(product, i + 1);
    *to.a = *from.a;
    *to.b = *from.b;
    *to.d = *from.d;
  }
}

// Axes of one element go, and neighbours that are one axis for all matrices become one.
void Simplify(BatchedProduct* product) noexcept {
  for (int32_t i = product->axes - 1; i >= 0; --i) {
    const int64_t extent = product->extents[i];
    if (extent == 1) {
      RemoveAxis(i, product);
      continue;
    }
    if (i + 1 == product->axes) continue;
    const int64_t inner = product->extents[i + 1];
    const Strides outer = StridesOf(product, i), next = StridesOf(product, i + 1);
    const auto joins = [&](int64_t stride, int64_t step) { return stride == step * inner; };
    if (!joins(*outer.a, *next.a) || !joins(*outer.b, *next.b) || !joins(*outer.d, *next.d)) {
      continue;
    }
    product->extents[i + 1] = extent * inner;
    RemoveAxis(i, product);
  }
}

// The last axis as further rows of a and d, where b is the same for all; or as further terms of the
// sums, where d is. Whether it could be done.
bool FoldLast(BatchedProduct* of) noexcept {
  if (of->axes == 0) return false;
  const int32_t last = of->axes - 1;
  const auto [a, b, d] = StridesOf(of, last);
  const bool as_rows = *b == 0 && !of->a.transposed && *a == of->m * of->k && *d == of->m * of->n;
  const bool as_terms = *d == 0 && of->a.transposed && !of->b.transposed && *a == of->m * of->k &&
                        *b == of->k * of->n;
  if (!as_rows && !as_terms) return false;
  (as_rows ? of->m : of->k) *= of->extents[last];
  RemoveAxis(last, of);
  return true;
}

void* At(const MatrixBatch& batch, int64_t offset, DType dtype) noexcept {
  return static_cast<char*>(batch.data) + offset * static_cast<int64_t>(SizeOf(dtype));
}

}  // namespace

Status Multiply(Blas& blas, const BatchedProduct& given, cudaStream_t stream) noexcept {
  BatchedProduct of = given;
  Simplify(&of);
  while (FoldLast(&of)) {
  }
  MatrixProduct product = {.m = of.m,
                           .n = of.n,
                           .k = of.k,
                           .a_transposed = of.a.transposed,
                           .b_transposed = of.b.transposed,
                           .factors = of.factors,
                           .result = of.result};
  // The last axis along which results differ is a batch; the host goes over the others.
  for (int32_t i = of.axes - 1; i >= 0 && product.batch == 1; --i) {
    const Strides strides = StridesOf(&of, i);
    if (*strides.d == 0) continue;
    product.batch = of.extents[i];
    product.a_stride = *strides.a;
    product.b_stride = *strides.b;
    product.d_stride = *strides.d;
    RemoveAxis(i, &of);
  }
  int64_t count = 1;
  for (int32_t i = 0; i < of.axes; ++i) count *= of.extents[i];
  for (int64_t index = 0; index < count; ++index) {
    int64_t a = 0, b = 0, d = 0, rest = index;
    product.sum = of.sum;
    for (int32_t i = of.axes - 1; i >= 0; --i) {
      const int64_t at = rest % of.extents[i];
      rest /= of.extents[i];
      const Strides strides = StridesOf(&of, i);
      a += at * *strides.a;
      b += at * *strides.b;
      d += at * *strides.d;
      product.sum = product.sum || (*strides.d == 0 && at > 0);
    }
    ENGINE_RETURN_IF_ERROR(blas.Multiply(product,
                                         {.a = At(of.a, a, of.factors),
                                          .b = At(of.b, b, of.factors),
                                          .d = At(of.d, d, of.result),
                                          .scale = of.scale},
                                         stream));
  }
  return {};
}

}  // namespace engine::cuda_ops
