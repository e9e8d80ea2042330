#include "convolution.h"

#include <algorithm>

#include "parallel.h"
#include "small_gemm.h"

namespace engine::cpu_ops {

Convolution::Convolution(const ConvGeometry& geometry, bool oihw, int32_t threads, int64_t samples)
    : conv_(geometry), oihw_(oihw), threads_(threads), samples_(samples) {
  using enum ConvPass::Direction;
  if (is_depthwise()) {
    depthwise_forward_ = DepthwisePass(kForward, geometry);
    depthwise_backward_ = DepthwisePass(kBackward, geometry);
    return;
  }
  if (Winograd::Pays(geometry, samples)) {
    winograd_.emplace(geometry, samples);
    return;
  }
  forward_ = ConvPass(kForward, geometry);
  backward_ = ConvPass(kBackward, geometry);
  weights_ = ConvWeightPass(geometry);
}

size_t Convolution::workspace_bytes() const noexcept {
  const size_t copy = static_cast<size_t>(copy_floats()) * sizeof(float);
  if (is_depthwise()) return copy;
  if (winograd_) return copy + winograd_->workspace_bytes();
  const size_t pass =
      std::max(forward_.workspace_bytes(samples_), backward_.workspace_bytes(samples_));
  return copy + std::max(pass * static_cast<size_t>(threads_), weights_.workspace_bytes(samples_));
}

// A copy lies before the workspace of the pass.
void Convolution::Run(ConvPass::Direction direction, ConvPass::Call call) const noexcept {
  if (oihw_) {
    auto* const copy = static_cast<float*>(call.workspace);
    Copy(To::kHwio, call.weight, copy);
    call.weight = copy;
    call.workspace = copy + copy_floats();
  }
  const bool forward = direction == ConvPass::Direction::kForward;
  if (is_depthwise()) {
    (forward ? depthwise_forward_ : depthwise_backward_).Run(call, threads_);
  } else if (winograd_) {
    winograd_->Run(direction, call);
  } else {
    (forward ? forward_ : backward_).Run(call, threads_);
  }
}

void Convolution::AddWeights(ConvWeightPass::Call call) const noexcept {
  float* const dweight = call.dweight;
  if (oihw_) {
    auto* const copy = static_cast<float*>(call.workspace);
    if (call.sum) Copy(To::kHwio, dweight, copy);
    call.dweight = copy;
    call.workspace = copy + copy_floats();
  }
  if (is_depthwise()) {
    AddDepthwiseWeights(conv_, call, threads_);
  } else if (winograd_) {
    winograd_->AddWeights(call);
  } else {
    weights_.Run(call, threads_);
  }
  if (oihw_) Copy(To::kOihw, call.dweight, dweight);
}

// For each input channel of a group, (O, taps), whose rows lie apart, becomes (taps, O), or back.
void Convolution::Copy(To layout, const float* source, float* target) const noexcept {
  const int64_t taps = conv_.window.taps(), outputs = conv_.output.channels;
  const int64_t oihw_row = conv_.inputs() * taps, hwio_row = conv_.inputs() * outputs;
  ForRows(conv_.inputs(), taps * outputs, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      if (layout == To::kHwio) {
        Transpose({source + c * taps, oihw_row}, outputs, taps, {target + c * outputs, hwio_row});
      } else {
        Transpose({source + c * outputs, hwio_row}, taps, outputs, {target + c * taps, oihw_row});
      }
    }
  });
}

}  // namespace engine::cpu_ops
