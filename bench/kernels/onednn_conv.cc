#include <dnnl.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/kernels/conv_layer.h"

namespace engine::bench {
namespace {

using dnnl::memory;

using Arguments = std::vector<std::pair<int, memory::desc>>;

double TimePrimitive(const dnnl::engine& engine, const dnnl::primitive& primitive,
                     const Arguments& arguments) {
  dnnl::stream stream(engine);
  std::unordered_map<int, memory> memories;
  for (const auto& [index, desc] : arguments) {
    memory data(desc, engine);
    auto* values = static_cast<float*>(data.get_data_handle());
    for (size_t i = 0; i < desc.get_size() / sizeof(float); ++i) {
      values[i] = 0.1f * static_cast<float>(i % 7);
    }
    memories.emplace(index, data);
  }
  return MedianMs([&] {
    primitive.execute(stream, memories);
    stream.wait();
  });
}

struct Descriptors {
  memory::desc x, weights, y;
  memory::dims strides, padding;

  Descriptors(const ConvLayer& layer, memory::format_tag tag)
      : x({layer.samples, layer.inputs, layer.extent, layer.extent}, memory::data_type::f32,
          // A first layer gets planes: with them oneDNN has a kernel of its own.
          tag == memory::format_tag::any && layer.inputs < 4 ? memory::format_tag::nchw : tag),
        weights({layer.channels, layer.inputs, layer.kernel, layer.kernel}, memory::data_type::f32,
                memory::format_tag::any),
        y({layer.samples, layer.channels, layer.output_extent(), layer.output_extent()},
          memory::data_type::f32, tag),
        strides{layer.stride, layer.stride},
        padding{layer.padding, layer.padding} {}

  dnnl::convolution_forward::primitive_desc Forward(const dnnl::engine& engine) const {
    return {{dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, x, weights, y,
             strides, padding, padding},
            engine};
  }
};

}  // namespace

ConvTimes TimeOneDnn(const ConvLayer& layer, bool channels_last) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const Descriptors d(layer, channels_last ? memory::format_tag::nhwc : memory::format_tag::any);
  const auto forward = d.Forward(engine);
  const dnnl::convolution_backward_data::primitive_desc data(
      {dnnl::algorithm::convolution_direct, d.x, d.weights, d.y, d.strides, d.padding, d.padding},
      engine, forward);
  const dnnl::convolution_backward_weights::primitive_desc weights(
      {dnnl::algorithm::convolution_direct, d.x, d.weights, d.y, d.strides, d.padding, d.padding},
      engine, forward);
  return {TimePrimitive(engine, dnnl::convolution_forward(forward),
                        {{DNNL_ARG_SRC, forward.src_desc()},
                         {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                         {DNNL_ARG_DST, forward.dst_desc()}}),
          TimePrimitive(engine, dnnl::convolution_backward_data(data),
                        {{DNNL_ARG_DIFF_SRC, data.diff_src_desc()},
                         {DNNL_ARG_WEIGHTS, data.weights_desc()},
                         {DNNL_ARG_DIFF_DST, data.diff_dst_desc()}}),
          TimePrimitive(engine, dnnl::convolution_backward_weights(weights),
                        {{DNNL_ARG_SRC, weights.src_desc()},
                         {DNNL_ARG_DIFF_WEIGHTS, weights.diff_weights_desc()},
                         {DNNL_ARG_DIFF_DST, weights.diff_dst_desc()}})};
}

double TimeOneDnnWeightReorder(const ConvLayer& layer) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const memory::desc plain({layer.channels, layer.inputs, layer.kernel, layer.kernel},
                           memory::data_type::f32, memory::format_tag::oihw);
  const memory::desc packed =
      Descriptors(layer, memory::format_tag::any).Forward(engine).weights_desc();
  const dnnl::reorder::primitive_desc reorder(engine, plain, engine, packed);
  return TimePrimitive(engine, dnnl::reorder(reorder),
                       {{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, packed}});
}

double TimeSgemm(int64_t m, int64_t n, int64_t k) {
  std::vector<float> a(static_cast<size_t>(m * k), 0.1f), b(static_cast<size_t>(k * n), 0.1f);
  std::vector<float> c(static_cast<size_t>(m * n));
  return MedianMs(
      [&] { dnnl_sgemm('N', 'N', m, n, k, 1.0f, a.data(), k, b.data(), n, 0.0f, c.data(), n); });
}

}  // namespace engine::bench
