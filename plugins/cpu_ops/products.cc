#include "products.h"

#include <dnnl.hpp>
#include <exception>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace engine::cpu_ops {
namespace {

using dnnl::memory;

struct Primitive {
  dnnl::matmul run;
  std::unordered_map<int, memory> arguments;
};

memory::data_type TypeOf(DType dtype) noexcept {
  return dtype == DType::kBFloat16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc Matrix(int64_t rows, int64_t columns, bool transposed, DType dtype) {
  const memory::dims strides = transposed ? memory::dims{1, rows} : memory::dims{columns, 1};
  return {{rows, columns}, TypeOf(dtype), strides};
}

Primitive Make(const Product& of, const dnnl::engine& engine) {
  const auto [m, n, k] = of.sizes;
  const memory::desc a = Matrix(m, k, of.a_transposed, of.factors),
                     b = Matrix(k, n, of.b_transposed, of.factors),
                     c = Matrix(m, n, false, of.result);
  const memory::desc bias = of.bias ? Matrix(1, n, false, of.factors) : memory::desc();
  dnnl::primitive_attr attributes;
  dnnl::post_ops after;
  if (of.sum) after.append_sum(1.0f);
  attributes.set_post_ops(after);
  Primitive made{dnnl::matmul({{a, b, bias, c}, attributes, engine}),
                 {{DNNL_ARG_SRC, {a, engine, nullptr}},
                  {DNNL_ARG_WEIGHTS, {b, engine, nullptr}},
                  {DNNL_ARG_DST, {c, engine, nullptr}}}};
  if (of.bias) made.arguments.emplace(DNNL_ARG_BIAS, memory(bias, engine, nullptr));
  return made;
}

}  // namespace

struct Products::Primitives {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<std::pair<Product, Primitive>> made;

  Primitive& For(const Product& product) {
    for (auto& [of, primitive] : made) {
      if (of == product) return primitive;
    }
    return made.emplace_back(product, Make(product, engine)).second;
  }
};

Products::Products() = default;
Products::~Products() = default;

Status Products::Multiply(const char* op, const Product& product, const void* a, const void* b,
                          const void* bias, void* c) noexcept {
  if (product.factors == DType::kFloat32) {
    return Gemm(op, product.sizes, {static_cast<const float*>(a), product.a_transposed},
                {static_cast<const float*>(b), product.b_transposed}, static_cast<float*>(c),
                product.sum);
  }
  try {
    if (primitives_ == nullptr) primitives_ = std::make_unique<Primitives>();
    auto& [run, arguments] = primitives_->For(product);
    arguments[DNNL_ARG_SRC].set_data_handle(const_cast<void*>(a));
    arguments[DNNL_ARG_WEIGHTS].set_data_handle(const_cast<void*>(b));
    arguments[DNNL_ARG_DST].set_data_handle(c);
    if (product.bias) arguments[DNNL_ARG_BIAS].set_data_handle(const_cast<void*>(bias));
    run.execute(primitives_->stream, arguments);
    return {};
  } catch (const dnnl::error& error) {
    return GemmError(op, product.sizes, error.status);
  } catch (const std::exception&) {
    return GemmError(op, product.sizes, dnnl_out_of_memory);
  }
}

bool HasBFloat16Products() noexcept {
  constexpr int kNeeded = dnnl_cpu_isa_avx512_core_bf16;  // a set of bits
  return (dnnl_get_effective_cpu_isa() & kNeeded) == kNeeded;
}

}  // namespace engine::cpu_ops
