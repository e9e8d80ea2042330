// Gradients that travel in another form: what a hook of HookStage::kWire has beside its own
// functions.
//
//   local hooks -> Pack -> transfer -> Unpack -> reduced hooks, update
//
// What travels is a sum of gradients over targets, times train.loss_scale. The update takes the
// mean: it divides the sum over ranks by the targets of all of them and by that scale. Neither need
// be what it was in the step before: a last batch is short, targets are masked, a checkpoint goes
// on with another batch or scale. So: a state keeps gradients as the mean has them, times
// WireCall::scale, and what goes from it to the wire is divided by the scale of that step. A format
// without states has to do with sums alone.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/device.h"
#include "engine/gradient_hook.h"
#include "engine/options.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine {

constexpr int32_t kMaxWireStates = 2;

enum class WireKind : int32_t {
  kCast = 0,    // one element of WireTraits::dtype for each of the gradient; the communicator adds
                // them up like any others
  kPacked = 1,  // bytes that only the hook understands: every rank gets those of all ranks
};

struct WireTraits {
  uint64_t struct_size = sizeof(WireTraits);
  WireKind kind = WireKind::kCast;
  DType dtype = DType::kBFloat16;  // kCast
  int32_t state_count = 0;         // float32 tensors of the parameter's shape, zero at the start,
                                   // of each rank its own; kept in checkpoints
  // A run that goes on with another number of ranks gives rank 0 the sum of a state over the old
  // ranks, and zeros to the others.
  FixedString<32> state_names[kMaxWireStates] = {};  // [a-z][a-z0-9_]*; another meaning has another
                                                     // name, since what is stored under one that
                                                     // a run does not know is dropped
};
ENGINE_LAYOUT(WireTraits, struct_size, kind, dtype, state_count, state_names);

// A span of one gradient of this rank (for Pack), or of the sum over ranks (for Unpack). A
// parameter is cut in the same spans in every step, and on every rank; but Unpack may be given a
// part of what was one span for Pack when the kind is kCast. All memory is that of the run's
// device; on an Accelerator, where every call is work of its own, one call of a kCast is for all
// gradients that travel together, with the zeroes between them: parameter, name and offset are
// those of the first.
struct WireCall {
  uint64_t struct_size = sizeof(WireCall);
  uint32_t parameter = 0;     // as in GradientView
  uint32_t accumulate = 0;    // of Unpack: 1 adds to the gradient, 0 replaces it
  TextView name = {};         // of the parameter; valid during the call
  float* gradient = nullptr;  // `count` elements; Pack reads them
  void* wire = nullptr;  // `count` elements of the dtype, aligned to one; or, aligned to 16 bytes,
                         // PackedBytes(count) of them
  float* states[kMaxWireStates] = {};  // of the span
  const float* scale = nullptr;  // Pack of a format with states: 1 / (targets of all ranks in this
                                 // step * train.loss_scale), in memory of the run's device
  int64_t offset = 0;            // elements of the gradient before the span
  int64_t count = 0;             // at least 1
  Stream* stream = nullptr;
};
ENGINE_LAYOUT(WireCall, struct_size, parameter, accumulate, name, gradient, wire, states, scale,
              offset, count, stream);

// Nothing is lost for good: the mean of what arrives of one gradient tends to it over the steps,
// or, without states, is within 1/16 of its largest element. What a step leaves is in the states
// and in SavedState alone: a run that goes on from a checkpoint has another object.
ENGINE_INTERFACE(WireFormat, Interface, "engine.wire_format.draft/1", wire_traits, PackedBytes,
                 Pack, Unpack);
class WireFormatBase : public Implements<WireFormat> {
 public:
  // Traits and PackedBytes are the same every time; there are 0 to kMaxWireStates states, which
  // have names.
  virtual WireTraits wire_traits() const noexcept = 0;  // [setup]

  // kPacked: the size of what Pack makes of any span of `count` elements; follows from `count` and
  // the options of the hook alone. Not the size of a gradient: spans are what a scheduler makes of
  // it. Also called before GradientHook::Setup. [setup]
  virtual int64_t PackedBytes(int64_t count) const noexcept = 0;

  // Pack writes `wire`, all of it, from the gradient, which stays as it is, and the states. Once
  // per span and step. [compute-lane]
  virtual Status Pack(const WireCall& call) noexcept = 0;

  // kCast: writes the gradient from the sum that arrived. kPacked: called for the bytes of one rank
  // after the other, in the order of ranks. Unpack without `accumulate` replaces the gradient.
  // Unpack with `accumulate` adds to the gradient. Every rank must come to the same bits. Unpack
  // gives kBadData for bytes that no Pack makes, and writes nothing but the gradient.
  // [compute-lane]
  virtual Status Unpack(const WireCall& call) noexcept = 0;

 protected:
  ~WireFormatBase() = default;
};

// A hook that is nothing but a wire format.
class WireHook : public GradientHookBase, public WireFormatBase {
 public:
  HookTraits traits() const noexcept final {
    return {.stage = HookStage::kWire, .scope = HookScope::kSpan};
  }
  void* Query(std::string_view id) noexcept override { return Offer<WireFormat>(id, this); }
  Status Setup(uint32_t) noexcept override { return {}; }
  Status BeginStep(uint64_t) noexcept override { return {}; }
  Status Observe(const GradientView&) noexcept final { return {}; }
  Status Apply(const GradientView&) noexcept final { return {}; }
  std::span<float> Observed() noexcept final { return {}; }

  // Of a kCast.
  int64_t PackedBytes(int64_t) const noexcept override { return 0; }
};

}  // namespace engine
