// batch_norm as kit/image_op_shapes.h has it.
//
// Backward, with n = (x - mean) / deviation and means over the batch of all ranks:
//   dx = weight / deviation * (dy - mean(dy) - n * mean(dy * n))
// The gradients of weight and bias are sums over this rank's samples, like those of any parameter.
//
// Where x is bfloat16, y and gradients of x are, too; statistics and parameters stay float32.
//
// Saved for backward: {number of values per channel, float[C] mean (high), mean (low),
// 1/deviation}.
#include <algorithm>
#include <cmath>

#include "batch_norm_memory.h"
#include "channel_kernels.h"
#include "cpu_op.h"
#include "kit/image_op_shapes.h"
#include "parallel.h"
#include "replica_sums.h"

namespace engine::cpu_ops {
namespace {

constexpr int32_t kX = 0, kWeight = 1, kBias = 2, kRunningMean = 3, kRunningVar = 4;

class BatchNormOp final : public kit::ShapedOp<CpuOp, kit::BatchNormRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    channels_ = inputs[kX].shape[-1];
    signature->saved_bytes = BatchNormSaved::Bytes(channels_);
    signature->workspace_bytes = BatchNormWorkspace::Bytes(channels_, threads());
    return {};
  }
  bool TakesBFloat16() const noexcept override { return true; }

  Status DoForward(const OpCall& call) noexcept override {
    const BatchNormWorkspace workspace(call.workspace, channels_);
    if (call.training != 0) {
      ENGINE_RETURN_IF_ERROR(UseBatch(call, workspace));
    } else {
      UseRunning(call, workspace);
    }
    WithElement(activation(), [&]<typename T>(T) {
      const Normalization<T> rows = {.x = As<const T>(call.inputs[kX]),
                                     .y = As<T>(call.outputs[0]),
                                     .high = workspace.coefficient(0),
                                     .scale = workspace.coefficient(1),
                                     .shift = workspace.coefficient(2),
                                     .channels = channels_};
      ForRowsAgain(call, [&](int64_t begin, int64_t end) { Normalize(rows, begin, end); });
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const BatchNormWorkspace workspace(call.workspace, channels_);
    const BatchNormSaved saved(call.saved, channels_);
    const ChannelSums sums = SumGradients(call, workspace, saved);
    WriteParameterGradient(call, kWeight, sums.second);
    WriteParameterGradient(call, kBias, sums.first);
    if (Synchronizes(call)) ENGINE_RETURN_IF_ERROR(ranks_.Add(call, channels_, sums));
    if (!WantsGradient(call, kX)) return {};
    SetSlopes(call, saved, sums, workspace);
    WithElement(activation(), [&]<typename T>(T) {
      const NormalizationGradient<T> rows = {.x = As<const T>(call.inputs[kX]),
                                             .dy = As<const T>(call.output_grads[0]),
                                             .dx = As<T>(call.input_grads[kX]),
                                             .sum = Accumulates(call, kX),
                                             .high = saved.high,
                                             .offset = workspace.coefficient(0),
                                             .slope = workspace.coefficient(1),
                                             .scale = workspace.coefficient(2),
                                             .channels = channels_};
      ForRowsAgain(call, [&](int64_t begin, int64_t end) { NormalizeBackward(rows, begin, end); });
    });
    return {};
  }

  static int64_t RowCount(const OpCall& call) noexcept {
    return call.inputs[kX].shape.Count(0, -1);
  }

  bool Synchronizes(const OpCall& call) const noexcept {
    return given_.sync && call.replicas != nullptr;
  }

  // The parts that rows are cut into for a sum.
  template <typename Body>
  int32_t ForParts(const OpCall& call, const Body& body) const noexcept {
    const int64_t rows = RowCount(call);
    const int32_t parts = PartCount(rows * channels_, kElementGrain);
    ForEachPart(parts, rows, 1, body);
    return parts;
  }

  // The second pass over rows, from the last to the first: the last are in a cache yet.
  template <typename Body>
  void ForRowsAgain(const OpCall& call, const Body& body) const noexcept {
    const int64_t step = kElementGrain / channels_ / kRowGroup * kRowGroup + kRowGroup;
    ForRows(RowCount(call), channels_, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t from = std::max(begin, end - step);
        body(from, end);
        end = from;
      }
    });
  }

  // Coefficients from running statistics.
  void UseRunning(const OpCall& call, const BatchNormWorkspace& workspace) const noexcept {
    for (int64_t c = 0; c < channels_; ++c) {
      const double variance = static_cast<double>(call.inputs[kRunningVar].f32()[c]);
      SetCoefficients(call, c, FloatPair(static_cast<double>(call.inputs[kRunningMean].f32()[c])),
                      1.0 / std::sqrt(variance + given_.epsilon), workspace);
    }
  }

  // Coefficients from the batch of all ranks; updates the running statistics.
  Status UseBatch(const OpCall& call, const BatchNormWorkspace& workspace) noexcept {
    const ChannelSums moments = workspace.sums(0);
    double count = OwnMoments(call, workspace);
    if (Synchronizes(call)) ENGINE_RETURN_IF_ERROR(ranks_.Merge(call, channels_, moments, &count));
    const BatchNormSaved saved(call.saved, channels_);
    *saved.count = count;
    for (int64_t c = 0; c < channels_; ++c) {
      const double mean = moments.first[c];
      const double variance = count > 0 ? moments.second[c] / count : 0.0;
      const double inverse_deviation = 1.0 / std::sqrt(variance + given_.epsilon);
      const FloatPair pair(mean);
      saved.high[c] = pair.high;
      saved.low[c] = pair.low;
      saved.inverse_deviation[c] = static_cast<float>(inverse_deviation);
      SetCoefficients(call, c, pair, inverse_deviation, workspace);
      if (count > 0) Follow(mean, &call.inputs[kRunningMean].f32()[c]);
      if (count > 1) Follow(moments.second[c] / (count - 1), &call.inputs[kRunningVar].f32()[c]);
    }
    return {};
  }

  void Follow(double batch, float* running) const noexcept {
    *running = static_cast<float>((1.0 - given_.momentum) * static_cast<double>(*running) +
                                  given_.momentum * batch);
  }

  static void SetCoefficients(const OpCall& call, int64_t c, const FloatPair& mean,
                              double inverse_deviation,
                              const BatchNormWorkspace& workspace) noexcept {
    const double scale = static_cast<double>(call.inputs[kWeight].f32()[c]) * inverse_deviation;
    const double bias = static_cast<double>(call.inputs[kBias].f32()[c]);
    workspace.coefficient(0)[c] = mean.high;
    workspace.coefficient(1)[c] = static_cast<float>(scale);
    workspace.coefficient(2)[c] = static_cast<float>(bias - static_cast<double>(mean.low) * scale);
  }

  // The moments of this rank's rows, in sums(0), and their number.
  double OwnMoments(const OpCall& call, const BatchNormWorkspace& workspace) const noexcept {
    const int32_t parts = ForParts(call, [&](int32_t part, int64_t begin, int64_t end) {
      WithElement(activation(), [&]<typename T>(T) {
        Moments(As<const T>(call.inputs[kX]), channels_, begin, end, workspace.sums(part));
      });
    });
    const int64_t rows = RowCount(call);
    const ChannelSums all = workspace.sums(0);
    for (int32_t part = 1; part < parts; ++part) {
      const ChannelSums sums = workspace.sums(part);
      const int64_t begin = PartBegin(part, parts, rows, 1);
      const int64_t count = PartBegin(part + 1, parts, rows, 1) - begin;
      for (int64_t c = 0; c < channels_; ++c) {
        MergeMoments(&all.first[c], &all.second[c], static_cast<double>(begin), sums.first[c],
                     sums.second[c], static_cast<double>(count));
      }
    }
    return static_cast<double>(rows);
  }

  // Sums over this rank's rows, in sums(0): of dy, and of dy (x - mean) / deviation.
  ChannelSums SumGradients(const OpCall& call, const BatchNormWorkspace& workspace,
                           const BatchNormSaved& saved) const noexcept {
    const int32_t parts = ForParts(call, [&](int32_t part, int64_t begin, int64_t end) {
      WithElement(activation(), [&]<typename T>(T) {
        GradientSums(As<const T>(call.inputs[kX]), As<const T>(call.output_grads[0]), saved.high,
                     channels_, begin, end, workspace.sums(part));
      });
    });
    const ChannelSums all = workspace.sums(0);
    for (int32_t part = 1; part < parts; ++part) {
      const ChannelSums sums = workspace.sums(part);
      for (int64_t c = 0; c < channels_; ++c) {
        all.first[c] += sums.first[c];
        all.second[c] += sums.second[c];
      }
    }
    for (int64_t c = 0; c < channels_; ++c) {
      all.second[c] = (all.second[c] - static_cast<double>(saved.low[c]) * all.first[c]) *
                      static_cast<double>(saved.inverse_deviation[c]);
    }
    return all;
  }

  void WriteParameterGradient(const OpCall& call, int32_t input,
                              const double* sums) const noexcept {
    if (!WantsGradient(call, static_cast<size_t>(input))) return;
    float* gradient = call.input_grads[static_cast<size_t>(input)].f32();
    for (int64_t c = 0; c < channels_; ++c) {
      const auto sum = static_cast<float>(sums[c]);
      gradient[c] = Accumulates(call, input) ? gradient[c] + sum : sum;
    }
  }

  // dx = ((dy - offset) - (x - high) slope) scale, see above.
  void SetSlopes(const OpCall& call, const BatchNormSaved& saved, const ChannelSums& sums,
                 const BatchNormWorkspace& workspace) const noexcept {
    const double share = *saved.count > 0 ? 1.0 / *saved.count : 0.0;
    for (int64_t c = 0; c < channels_; ++c) {
      const auto inverse_deviation = static_cast<double>(saved.inverse_deviation[c]);
      const double slope = sums.second[c] * share * inverse_deviation;
      workspace.coefficient(0)[c] =
          static_cast<float>(sums.first[c] * share - static_cast<double>(saved.low[c]) * slope);
      workspace.coefficient(1)[c] = static_cast<float>(slope);
      workspace.coefficient(2)[c] = static_cast<float>(
          static_cast<double>(call.inputs[kWeight].f32()[c]) * inverse_deviation);
    }
  }

  int64_t channels_ = 0;
  ReplicaSums ranks_;
};

}  // namespace

const OpFactory kMakeBatchNorm = kit::NewOp<BatchNormOp>;

}  // namespace engine::cpu_ops
