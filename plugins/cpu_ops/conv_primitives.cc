// oneDNN has weights in layouts of its own, which differ from pass to pass: those of a step are
// brought into each, at the begin of the workspace. Gradients of weights are brought back.
#include "conv_primitives.h"

#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <exception>
#include <map>
#include <string_view>

#include "cpu_op.h"
#include "dnnl_pass.h"
#include "parallel.h"

namespace engine::cpu_ops {
namespace {

using dnnl::memory;
using Type = memory::data_type;
constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

template <typename Primitive>
bool IsReference(const DnnlPass<Primitive>& pass) {
  return std::string_view(pass.desc().impl_info_str()).starts_with("ref");
}

memory::desc Activations(const Plane& plane, int64_t samples) {
  return {
      {samples, plane.channels, plane.height, plane.width}, Type::bf16, memory::format_tag::nhwc};
}

// As (groups, O / groups, C / groups, KH, KW), whatever the layout.
memory::dims WeightDims(const ConvGeometry& conv) {
  return {conv.groups, conv.outputs(), conv.inputs(), conv.window.rows.kernel,
          conv.window.columns.kernel};
}

// The weight as it is kept: (O, C / groups, KH, KW), or (KH, KW, C / groups, O), in which the outputs
// of a group lie side by side.
memory::desc PlainWeights(const ConvGeometry& conv, bool oihw, Type type) {
  const int64_t taps = conv.window.taps(), width = conv.window.columns.kernel;
  const int64_t c = conv.inputs(), o = conv.output.channels, of_group = conv.outputs();
  const memory::dims strides = oihw ? memory::dims{of_group * c * taps, c * taps, taps, width, 1}
                                    : memory::dims{of_group, 1, o, width * c * o, c * o};
  return {WeightDims(conv), type, strides};
}

// Without the taps at its ends that no position meets: of a 3x3 kernel over a 1x1 plane all but one.
// oneDNN would multiply zeros by them, and move them.
kit::Window Cropped(const kit::Window& axis, int64_t inputs, int64_t outputs, int64_t* first) {
  int64_t begin = axis.kernel, end = 0;
  for (int64_t i = 0; i < outputs; ++i) {
    const kit::Window::Range taps = axis.Taps(i, inputs);
    if (taps.size() <= 0) continue;
    begin = std::min(begin, taps.begin);
    end = std::max(end, taps.end);
  }
  kit::Window cropped = axis;
  cropped.kernel = end - begin;
  cropped.before = axis.before - begin * axis.dilation;
  cropped.after = axis.after - (axis.kernel - end) * axis.dilation;
  const bool fits = cropped.kernel > 0 && cropped.before >= 0 && cropped.after >= 0;
  *first = fits ? begin : 0;
  return fits ? cropped : axis;
}

memory::desc AnyWeights(const ConvGeometry& conv, Type type) {
  return {WeightDims(conv), type, memory::format_tag::any};
}

// Also rounds and adds where the types and `sum` ask for it.
dnnl::reorder::primitive_desc Reorder(const dnnl::engine& engine, const memory::desc& from,
                                      const memory::desc& to, bool sum) {
  dnnl::primitive_attr attributes;
  dnnl::post_ops after;
  if (sum) after.append_sum(1.0f);
  attributes.set_post_ops(after);
  return {engine, from, engine, to, attributes};
}

}  // namespace

// Of one number of samples.
struct ConvPrimitives::Passes {
  DnnlPass<dnnl::convolution_forward> forward;
  DnnlPass<dnnl::convolution_backward_data> data;
  DnnlPass<dnnl::convolution_backward_weights> weights;
  DnnlPass<dnnl::reorder> to_forward, to_data, from_gradient, add_gradient;

  static Passes Of(const ConvGeometry& whole, bool oihw, bool has_bias, int64_t samples,
                   const dnnl::engine& engine) {
    ConvGeometry conv = whole;
    int64_t first_row = 0, first_column = 0;
    conv.window.rows =
        Cropped(whole.window.rows, whole.input.height, whole.output.height, &first_row);
    conv.window.columns =
        Cropped(whole.window.columns, whole.input.width, whole.output.width, &first_column);
    const auto plain_weights = [&](Type type) {
      return PlainWeights(whole, oihw, type)
          .submemory_desc(WeightDims(conv), {0, 0, 0, first_row, first_column});
    };
    const kit::Window &rows = conv.window.rows, &columns = conv.window.columns;
    const memory::desc x = Activations(conv.input, samples), y = Activations(conv.output, samples);
    const memory::desc any = AnyWeights(conv, Type::bf16);
    const memory::desc bias =
        has_bias ? memory::desc({conv.output.channels}, Type::bf16, memory::format_tag::a)
                 : memory::desc();
    const memory::dims stride = {rows.stride, columns.stride};
    const memory::dims dilation = {rows.dilation - 1, columns.dilation - 1};
    const memory::dims before = {rows.before, columns.before};
    const memory::dims after = {rows.after, columns.after};
    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, kAlgorithm, x, any, bias, y, stride, dilation, before,
         after},
        engine);
    const dnnl::convolution_backward_data::primitive_desc data(
        {kAlgorithm, x, any, y, stride, dilation, before, after}, engine, forward);
    const dnnl::convolution_backward_weights::primitive_desc weights(
        {kAlgorithm, x, AnyWeights(conv, Type::f32), y, stride, dilation, before, after}, engine,
        forward);
    const memory::desc plain = plain_weights(Type::bf16);
    const memory::desc gradient = plain_weights(Type::f32);
    const memory::desc made = weights.diff_weights_desc();
    return {DnnlPass<dnnl::convolution_forward>(forward),
            DnnlPass<dnnl::convolution_backward_data>(data),
            DnnlPass<dnnl::convolution_backward_weights>(weights),
            DnnlPass<dnnl::reorder>(Reorder(engine, plain, forward.weights_desc(), false)),
            DnnlPass<dnnl::reorder>(Reorder(engine, plain, data.weights_desc(), false)),
            DnnlPass<dnnl::reorder>(Reorder(engine, made, gradient, false)),
            DnnlPass<dnnl::reorder>(Reorder(engine, made, gradient, true))};
  }

  int64_t weight_count() const {
    int64_t count = 1;
    for (const int64_t extent : from_gradient.desc().dst_desc().dims()) count *= extent;
    return count;
  }

  // The workspace of every pass begins with weights in oneDNN's layout.
  size_t weight_bytes() const {
    const size_t most =
        std::max({forward.desc().weights_desc().get_size(), data.desc().weights_desc().get_size(),
                  weights.desc().diff_weights_desc().get_size()});
    return (most + 63) / 64 * 64;
  }
};

// Kept for as long as the op: making them takes longer than running them.
struct ConvPrimitives::Made {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<int64_t, Passes> passes;  // by samples

  void Move(DnnlPass<dnnl::reorder>& reorder, const void* from, void* to) {
    reorder.Run(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }
};

namespace {

// run(), with its exceptions as a Status.
template <typename Run>
Status Try(const char* op, const Run& run) noexcept {
  try {
    run();
    return {};
  } catch (const dnnl::error& error) {
    return Status::Error(
        error.status == dnnl_out_of_memory ? StatusCode::kResourceExhausted : StatusCode::kInternal,
        "%s: oneDNN refused a convolution, status %d", op, static_cast<int>(error.status));
  } catch (const std::exception&) {
    return Status::Error(StatusCode::kResourceExhausted, "%s: no memory for its plan", op);
  }
}

}  // namespace

ConvPrimitives::ConvPrimitives(const ConvGeometry& geometry, bool oihw, bool bias, int32_t threads)
    : conv_(geometry),
      oihw_(oihw),
      bias_(bias),
      threads_(threads),
      made_(std::make_unique<Made>()) {}
ConvPrimitives::~ConvPrimitives() = default;

// A primitive is made for the number of threads that there are then.
bool ConvPrimitives::Prepare(int64_t samples) noexcept {
  omp_set_num_threads(threads_);
  bool is_fast = false;
  const Status made = Try("", [&] {
    const Passes& passes = Find(samples);
    is_fast =
        !IsReference(passes.forward) && !IsReference(passes.data) && !IsReference(passes.weights);
    const int64_t dx = samples * conv_.input.count() * static_cast<int64_t>(sizeof(BFloat16));
    workspace_bytes_ = passes.weight_bytes() + static_cast<size_t>(dx);
  });
  return made.ok() && is_fast;
}

Status ConvPrimitives::Forward(const char* op, int64_t samples, const BFloat16* x,
                               const BFloat16* weight, const BFloat16* bias, BFloat16* y,
                               void* workspace) noexcept {
  return Try(op, [&] {
    Passes& passes = Find(samples);
    made_->Move(passes.to_forward, weight, workspace);
    passes.forward.Run(made_->stream, {{DNNL_ARG_SRC, x},
                                       {DNNL_ARG_WEIGHTS, workspace},
                                       {DNNL_ARG_DST, y},
                                       {DNNL_ARG_BIAS, bias}});
  });
}

// oneDNN writes dx; what is added is added after.
Status ConvPrimitives::BackwardData(const char* op, int64_t samples, const BFloat16* dy,
                                    const BFloat16* weight, BFloat16* dx, bool sum,
                                    void* workspace) noexcept {
  return Try(op, [&] {
    Passes& passes = Find(samples);
    made_->Move(passes.to_data, weight, workspace);
    auto* const apart =
        reinterpret_cast<BFloat16*>(static_cast<std::byte*>(workspace) + passes.weight_bytes());
    BFloat16* const target = sum ? apart : dx;
    passes.data.Run(
        made_->stream,
        {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, workspace}, {DNNL_ARG_DIFF_SRC, target}});
    if (!sum) return;
    ForElements(samples * conv_.input.count(),
                [&](int64_t begin, int64_t end) { Add(dx, apart, dx, begin, end); });
  });
}

Status ConvPrimitives::BackwardWeights(const char* op, int64_t samples, const BFloat16* x,
                                       const BFloat16* dy, float* dweight, bool sum,
                                       void* workspace) noexcept {
  return Try(op, [&] {
    Passes& passes = Find(samples);
    passes.weights.Run(
        made_->stream,
        {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_WEIGHTS, workspace}});
    // Of taps that were left out it is zero.
    if (!sum && passes.weight_count() < conv_.weights())
      std::fill_n(dweight, conv_.weights(), 0.0f);
    made_->Move(sum ? passes.add_gradient : passes.from_gradient, workspace, dweight);
  });
}

// Ops are called by one thread at a time.
ConvPrimitives::Passes& ConvPrimitives::Find(int64_t samples) {
  const auto found = made_->passes.find(samples);
  if (found != made_->passes.end()) return found->second;
  return made_->passes.emplace(samples, Passes::Of(conv_, oihw_, bias_, samples, made_->engine))
      .first->second;
}

}  // namespace engine::cpu_ops
