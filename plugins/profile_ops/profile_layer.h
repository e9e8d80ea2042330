// The op profile_layer: a layer of a measured profile. It lasts as long as the real one, has as
// many parameters, and computes next to nothing.
#pragma once

#include <cstdint>

#include "engine/op.h"
#include "pacer.h"

namespace engine::profile_ops {

struct LayerSettings {
  uint64_t id = 0;
  double forward_us = 0;
  double backward_us = 0;
  int64_t parameters = 1;
  double jitter = 0;  // relative, of each time
  uint64_t rank = 0;  // for the jitter: ranks are late at different places
};

// Forward:  y[r][j] = x[r][j] + w for even j, - w for odd j, where w is one of the parameters,
//           another one in each step. So a forward pass that read a parameter too early or too late
//           shows in the loss.
// Backward: of x what is given for y; of parameter i GradientAt(i) times the number of rows. This
//           is no derivative of anything.
class ProfileLayer final : public OpBase {
 public:
  // `pacer` outlives the op; both are used by the compute lane only.
  ProfileLayer(const LayerSettings& settings, Pacer* pacer) noexcept
      : settings_(settings), pacer_(*pacer) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override;
  Status Forward(const OpCall& call) noexcept override;
  Status Backward(const OpCall& call) noexcept override;

 private:
  enum class Pass : uint64_t { kForward = 0, kBackward = 1 };
  // How long this call shall last.
  Pacer::Clock::duration Duration(const OpCall& call, Pass pass) const noexcept;

  const LayerSettings settings_;
  Pacer& pacer_;
};

}  // namespace engine::profile_ops
