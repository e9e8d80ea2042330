// What happens to a gradient on its way from backward to the optimizer: a chain, in configured
// order.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/device.h"
#include "engine/status.h"

namespace engine {

enum class HookStage : int32_t {
  kLocal = 0,    // before the transfer: this rank's sum of gradients
  kReduced = 1,  // after it: the mean over all samples of the step, the same on every rank
  kWire = 2,  // during it: how gradients travel, after all local hooks. At most one hook of a run;
              // it has a WireFormat (wire_format.h), and of the functions below only traits,
              // Setup and BeginStep are called
};

// How much Apply has to see at once. kSpan: Apply works element by element, on any span of a
// gradient; kGlobal: spans are shown to Observe and given to Apply in any cut.
enum class HookScope : int32_t {
  kTensor = 0,  // one whole gradient at a time
  kGlobal = 1,  // every gradient is shown to Observe before Apply gets the first span
  kSpan = 2,
};

struct HookTraits {
  uint64_t struct_size = sizeof(HookTraits);
  HookStage stage = HookStage::kReduced;
  HookScope scope = HookScope::kTensor;
};
ENGINE_LAYOUT(HookTraits, struct_size, stage, scope);

// One gradient, or a span of it, in memory of the run's device, and so is `scale`. Its value is
// data[i] * *scale: a hook may change either, so that a pure scaling costs no pass over memory.
struct GradientView {
  uint64_t struct_size = sizeof(GradientView);
  uint32_t parameter = 0;  // index, the same in every step; fewer than the count given to Setup
  TextView name = {};      // of the parameter; valid during the call
  float* data = nullptr;   // `count` elements, the caller's
  int64_t offset = 0;      // elements of the gradient before `data`; 0 for kTensor
  int64_t count = 0;
  float* scale = nullptr;  // one number; each span of a gradient may have its own
  Stream* stream = nullptr;
};
ENGINE_LAYOUT(GradientView, struct_size, parameter, name, data, offset, count, scale, stream);

// Gradients come in any order, and in another one on each rank and in each step: the result has the
// same bits. Finite gradients stay finite. What a step leaves in the hook is what SavedState
// keeps: a run that goes on from a checkpoint has another object.
ENGINE_INTERFACE(GradientHook, Object, "engine.gradient_hook.draft/1", traits, Setup, BeginStep,
                 Observe, Apply, Observed);
class GradientHookBase : public Implements<GradientHook> {
 public:
  virtual HookTraits traits() const noexcept = 0;  // the same every time [setup]
  // Once, before the first step. [setup]
  virtual Status Setup(uint32_t parameter_count) noexcept = 0;
  // Before the first gradient of a step is shown. [compute-lane]
  virtual Status BeginStep(uint64_t step) noexcept = 0;
  // kGlobal only: a span that Apply will get, in any order. [compute-lane]
  virtual Status Observe(const GradientView& gradient) noexcept = 0;
  // Apply changes `count` elements of data, one scale, and nothing else.
  // [compute-lane]
  virtual Status Apply(const GradientView& gradient) noexcept = 0;
  // kGlobal only: what Observe has summed up in this step, when this rank was shown only its part
  // of the gradients (sharded updates). Observed: at most 16 numbers, the same number of them in
  // every step, whose sum over the ranks Apply uses: the caller makes it in place before the first
  // Apply. Of an Accelerator they are device memory, in the order of the stream. Not called in
  // other runs. [compute-lane]
  virtual std::span<float> Observed() noexcept = 0;
};

}  // namespace engine
