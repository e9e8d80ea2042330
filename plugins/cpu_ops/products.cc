#include "products.h"

#include <algorithm>
#include <dnnl.hpp>
#include <exception>
#include <utility>
#include <vector>

#include "dnnl_pass.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

using dnnl::memory;

memory::data_type TypeOf(DType dtype) noexcept {
  return dtype == DType::kBFloat16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// A transposed matrix is read where it is, by its strides: oneDNN packs operands in any case.
memory::desc Matrix(int64_t rows, int64_t columns, bool transposed, DType dtype) {
  const memory::dims strides = transposed ? memory::dims{1, rows} : memory::dims{columns, 1};
  return {{rows, columns}, TypeOf(dtype), strides};
}

DnnlPass<dnnl::matmul> Make(const Product& of, const dnnl::engine& engine) {
  const auto [m, n, k] = of.sizes;
  const memory::desc a = Matrix(m, k, of.a_transposed, of.factors),
                     b = Matrix(k, n, of.b_transposed, of.factors),
                     c = Matrix(m, n, false, of.result);
  const memory::desc bias = of.bias ? Matrix(1, n, false, of.factors) : memory::desc();
  dnnl::primitive_attr attributes;
  dnnl::post_ops after;
  if (of.sum) after.append_sum(1.0f);
  attributes.set_post_ops(after);
  return DnnlPass<dnnl::matmul>({{a, b, bias, c}, attributes, engine});
}

}  // namespace

// Few: one for each product of a layer, and again for a last batch of another size.
struct Products::Primitives {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<std::pair<Product, DnnlPass<dnnl::matmul>>> made;
  std::vector<float> padded;

  DnnlPass<dnnl::matmul>& For(const Product& product) {
    for (auto& [of, primitive] : made) {
      if (of == product) return primitive;
    }
    return made.emplace_back(product, Make(product, engine)).second;
  }

  // Below AVX-512 oneDNN reads a transposed factor where it is. Rows that are a multiple of 4096 bytes
  // apart compete for one place of the cache, which halves its speed where c has few columns (on Zen 3
  // 38 GFLOP/s, and 87 with the copy's time).
  Operand Padded(const GemmSizes& sizes, Operand a) {
    constexpr int64_t kPage = 1024, kFewColumns = 512;
    const auto [m, n, k] = sizes;
    if (!a.transposed || m % kPage != 0 || n > kFewColumns || kProcessor != Registers::kAvx2)
      return a;
    const int64_t stride = m + kLanes;
    padded.resize(static_cast<size_t>(k * stride));
    ForRows(k, m, [&, m = m](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        std::copy_n(a.data + i * m, m, padded.data() + i * stride);
    });
    return {padded.data(), true, stride};
  }
};

Products::Products() = default;
Products::~Products() = default;

Status Products::Multiply(const char* op, const Product& product, const void* a, const void* b,
                          const void* bias, void* c) noexcept {
  // In float32 matmul takes 0 to 10 % less than sgemm where b is transposed, and 0 to 40 % more where it
  // is not (gpt and gpt2_124m on Zen 4). Packing b before is faster nowhere, in bfloat16 neither.
  try {
    if (primitives_ == nullptr) primitives_ = std::make_unique<Primitives>();
    if (product.factors == DType::kFloat32 && !product.b_transposed && !product.bias) {
      const Operand left =
          primitives_->Padded(product.sizes, {static_cast<const float*>(a), product.a_transposed});
      return Gemm(op, product.sizes, left, {static_cast<const float*>(b), false},
                  static_cast<float*>(c), product.sum);
    }
    primitives_->For(product).Run(
        primitives_->stream,
        {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_BIAS, bias}});
    return {};
  } catch (const dnnl::error& error) {
    return GemmError(op, product.sizes, error.status);
  } catch (const std::exception&) {
    return GemmError(op, product.sizes, dnnl_out_of_memory);
  }
}

bool HasBFloat16Products() noexcept {
  // As oneDNN sees the processor, which its variable DNNL_MAX_CPU_ISA can narrow.
  constexpr int kNeeded = dnnl_cpu_isa_avx512_core_bf16;  // a set of bits
  return (dnnl_get_effective_cpu_isa() & kNeeded) == kNeeded;
}

}  // namespace engine::cpu_ops
