// group_norm as kit/image_op_shapes.h has it.
//
// Backward, with n = (x - mean) / deviation, g = dy weight, and means over the group:
//   dx = (g - mean(g) - n * mean(g n)) / deviation
//
// Saved for backward, of each group of each sample: mean (high), mean (low), 1/deviation.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "batch_norm_memory.h"
#include "channel_kernels.h"
#include "cpu_op.h"
#include "kit/image_op_shapes.h"
#include "parallel.h"

namespace engine::cpu_ops {
namespace {

constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

class GroupNormOp final : public kit::ShapedOp<CpuOp, kit::GroupNormRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const Shape& x = inputs[kX].shape;
    channels_ = x[-1];
    rows_ = x.Count(1, -1);
    samples_ = x[0];
    signature->saved_bytes = samples_ * given_.groups * static_cast<int64_t>(sizeof(Saved));
    signature->workspace_bytes =
        PaddedChannels(channels_) * (samples_ * 2 * static_cast<int64_t>(sizeof(double)) +
                                     threads() * kArrays * static_cast<int64_t>(sizeof(float)));
    return {};
  }

  Status DoForward(const OpCall& call) noexcept override {
    ForSamples(call, [&](int64_t sample, const Scratch& scratch) {
      const float* x = call.inputs[kX].f32() + sample * size();
      Moments(x, channels_, 0, rows_, scratch.sums);
      for (int64_t g = 0; g < given_.groups; ++g) {
        const Saved saved = StatisticsOf(scratch.sums, g);
        if (call.saved != nullptr) SavedOf(call, sample)[g] = saved;
        for (int64_t c = Begin(g); c < Begin(g + 1); ++c) {
          const float scale = call.inputs[kWeight].f32()[c] * saved.inverse_deviation;
          scratch.high[c] = saved.high;
          scratch.scale[c] = scale;
          scratch.offset[c] = call.inputs[kBias].f32()[c] - saved.low * scale;
        }
      }
      Normalize<float>({.x = x,
                        .y = call.outputs[0].f32() + sample * size(),
                        .high = scratch.high,
                        .scale = scratch.scale,
                        .shift = scratch.offset,
                        .channels = channels_},
                       0, rows_);
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    ForSamples(call, [&](int64_t sample, const Scratch& scratch) {
      const float* x = call.inputs[kX].f32() + sample * size();
      const float* dy = call.output_grads[0].f32() + sample * size();
      for (int64_t c = 0; c < channels_; ++c) {
        scratch.high[c] = SavedOf(call, sample)[c / width()].high;
      }
      GradientSums(x, dy, scratch.high, channels_, 0, rows_, scratch.sums);
      for (int64_t g = 0; g < given_.groups; ++g) SetSlopes(call, sample, g, scratch);
      if (!WantsGradient(call, kX)) return;
      NormalizeBackward<float>({.x = x,
                                .dy = dy,
                                .dx = call.input_grads[kX].f32() + sample * size(),
                                .sum = Accumulates(call, kX),
                                .high = scratch.high,
                                .offset = scratch.offset,
                                .slope = scratch.slope,
                                .scale = scratch.scale,
                                .channels = channels_,
                                .weight = call.inputs[kWeight].f32()},
                               0, rows_);
    });
    AddSums(call, kBias, &ChannelSums::first);
    AddSums(call, kWeight, &ChannelSums::second);
    return {};
  }

  struct Saved {
    float high, low, inverse_deviation;
  };

  // `sums` are the sample's, the others the thread's.
  struct Scratch {
    ChannelSums sums;
    float *high, *scale, *slope, *offset;
  };
  static constexpr int64_t kArrays = 3 + 4;  // of floats per thread

  int64_t size() const noexcept { return rows_ * channels_; }
  int64_t width() const noexcept { return channels_ / given_.groups; }
  int64_t Begin(int64_t group) const noexcept { return group * width(); }
  Saved* SavedOf(const OpCall& call, int64_t sample) const noexcept {
    return static_cast<Saved*>(call.saved) + sample * given_.groups;
  }

  // The sums of a sample; they stay until the call ends.
  ChannelSums SumsOf(const OpCall& call, int64_t sample) const noexcept {
    auto* const sums =
        static_cast<double*>(call.workspace) + sample * 2 * PaddedChannels(channels_);
    return {sums, sums + PaddedChannels(channels_), nullptr};
  }

  // body(sample, scratch): one thread for each sample.
  template <typename Body>
  void ForSamples(const OpCall& call, const Body& body) const noexcept {
    const int64_t samples = call.inputs[kX].shape[0], padded = PaddedChannels(channels_);
    auto* const arrays =
        reinterpret_cast<float*>(static_cast<double*>(call.workspace) + samples_ * 2 * padded);
    ForEachPart(PartCount(samples * size(), kElementGrain), samples, 1,
                [&](int32_t part, int64_t begin, int64_t end) {
                  float* const own = arrays + part * kArrays * padded;
                  for (int64_t i = begin; i < end; ++i) {
                    ChannelSums sums = SumsOf(call, i);
                    sums.scratch = own;
                    body(i, Scratch{sums, own + 3 * padded, own + 4 * padded, own + 5 * padded,
                                    own + 6 * padded});
                  }
                });
  }

  // Of a group, from the moments of its channels.
  Saved StatisticsOf(const ChannelSums& moments, int64_t group) const noexcept {
    const auto rows = static_cast<double>(rows_);
    double mean = 0, squares = 0, count = 0;
    for (int64_t c = Begin(group); c < Begin(group + 1); ++c, count += rows) {
      MergeMoments(&mean, &squares, count, moments.first[c], moments.second[c], rows);
    }
    const FloatPair pair(mean);
    return {pair.high, pair.low,
            static_cast<float>(1.0 / std::sqrt(squares / count + given_.epsilon))};
  }

  // The coefficients of dx in a group. Leaves, for each channel, the sum of dy n where that of
  // dy (x - high) was.
  void SetSlopes(const OpCall& call, int64_t sample, int64_t group,
                 const Scratch& scratch) const noexcept {
    const Saved& saved = SavedOf(call, sample)[group];
    const auto low = static_cast<double>(saved.low);
    const auto inverse_deviation = static_cast<double>(saved.inverse_deviation);
    const float* weight = call.inputs[kWeight].f32();
    double sum = 0, product = 0;  // of g, and of g n
    for (int64_t c = Begin(group); c < Begin(group + 1); ++c) {
      double &first = scratch.sums.first[c], &second = scratch.sums.second[c];
      second = (second - low * first) * inverse_deviation;
      sum += static_cast<double>(weight[c]) * first;
      product += static_cast<double>(weight[c]) * second;
    }
    const double share = 1.0 / static_cast<double>(rows_ * width());
    const double slope = product * share * inverse_deviation;
    for (int64_t c = Begin(group); c < Begin(group + 1); ++c) {
      scratch.slope[c] = static_cast<float>(slope);
      scratch.offset[c] = static_cast<float>(sum * share - low * slope);
      scratch.scale[c] = saved.inverse_deviation;
    }
  }

  // The gradient of a parameter: sums over samples, in their order.
  void AddSums(const OpCall& call, int32_t input, double* ChannelSums::*sums) const noexcept {
    if (!WantsGradient(call, static_cast<size_t>(input))) return;
    float* gradient = call.input_grads[static_cast<size_t>(input)].f32();
    for (int64_t c = 0; c < channels_; ++c) {
      double sum = Accumulates(call, input) ? static_cast<double>(gradient[c]) : 0.0;
      for (int64_t i = 0; i < call.inputs[kX].shape[0]; ++i) sum += (SumsOf(call, i).*sums)[c];
      gradient[c] = static_cast<float>(sum);
    }
  }

  int64_t channels_ = 0, rows_ = 0, samples_ = 0;
};

}  // namespace

const OpFactory kMakeGroupNorm = kit::NewOp<GroupNormOp>;

}  // namespace engine::cpu_ops
