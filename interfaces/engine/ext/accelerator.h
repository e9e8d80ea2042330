// What a device offers whose memory the host cannot reach and whose work goes on after the call
// that asks for it has returned.
//
// On such a device all of a step is queued without waiting for any of it: what the host decides by
// a number that the device computes (how many targets a step had, how long its gradient is) is
// decided by the device, in arithmetic on flat arrays (FlatMath), and what changes from step to
// step is read from device memory (StepScalars), so that the work of a step can be recorded once
// and replayed.
//
// Not part of the ABI fingerprint: an extension is found by its identifier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/device.h"
#include "engine/object.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine {

constexpr std::string_view kAcceleratorId = "engine.accelerator/1";

// Lies in device memory and is written in the order of the stream.
struct StepScalars {
  uint64_t step = 0;          // of the passes, from 1: OpCall::step
  uint64_t first_sample = 0;  // OpCall::first_sample
  uint64_t update_step = 0;   // of the updates: UpdateCall::step
  float learning_rate = 0;    // of the updates, before factors of single parameters
  float reserved = 0;
};

// One span of one parameter; all pointers are device memory.
struct UpdateSpan {
  float* value = nullptr;
  const float* gradient = nullptr;
  float* states[2] = {};                  // kAdamW: first and second moment; kSgd: velocity or null
  void* value_bf16 = nullptr;             // null, or also gets the new value, rounded to bfloat16
  const float* gradient_scale = nullptr;  // one number; the gradient is gradient[i] * it
  int64_t count = 0;
  float learning_rate_scale = 1;  // multiplies StepScalars::learning_rate
  float weight_decay = 0;
};

enum class UpdateFormula : int32_t { kSgd = 0, kAdamW = 1 };  // those of the plugins sgd and adamw

struct UpdateRule {
  UpdateFormula formula = UpdateFormula::kSgd;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;  // kAdamW
  float momentum = 0;                                   // kSgd
  uint32_t nesterov = 0;                                // kSgd
};

// A span of numbers data[i] * *scale, in device memory.
struct ScaledSpan {
  const float* data = nullptr;
  int64_t count = 0;
  float* scale = nullptr;
};

// Arithmetic on flat arrays in device memory, queued on `stream`. Results are the same in every
// run: sums have one order. [compute-lane]
class FlatMath {
 public:
  virtual Status Update(std::span<const UpdateSpan> spans, const UpdateRule& rule,
                        const StepScalars* scalars, Stream* stream) noexcept = 0;

  // *sum = the sum over all elements of all spans of (data[i] * *scale)^2, in the order given.
  virtual Status SumOfSquares(std::span<const ScaledSpan> spans, float* sum,
                              Stream* stream) noexcept = 0;
  // Every scale, of which no two are the same one, becomes scale * min(1, max_norm /
  // sqrt(*square)).
  virtual Status ScaleToNorm(std::span<const ScaledSpan> spans, const float* square, float max_norm,
                             Stream* stream) noexcept = 0;
  // data[i] becomes clamp(data[i] * *scale, -limit, limit) / *scale.
  virtual Status ClampValue(float* data, int64_t count, const float* scale, float limit,
                            Stream* stream) noexcept = 0;
  // scales[i] = factor / max(*divisor, 1), for `count` scales.
  virtual Status FillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                              Stream* stream) noexcept = 0;

  // target[i] = source[i] in another type: kFloat32, kBFloat16 (to nearest, ties to even) or
  // kFloat16. kUnsupported for others. Arrays do not overlap.
  virtual Status Convert(const void* source, DType from, void* target, DType to, int64_t count,
                         Stream* stream) noexcept = 0;
  // target[i] += source[i].
  virtual Status Add(float* target, const float* source, int64_t count,
                     Stream* stream) noexcept = 0;

 protected:
  ~FlatMath() = default;
};

// The work of a stream between two points, to be done again. The addresses in it stay those of the
// recording.
class Recording : public Object {
 public:
  virtual Status Launch(Stream* stream) noexcept = 0;  // [compute-lane]
};

// Device::Query(kAcceleratorId) gives one, or null for a device whose memory is host memory and
// whose work is done when the call returns. It lives as long as the device.
class Accelerator {
 public:
  // The number by which the device's own library knows it (cudaSetDevice). [any-thread]
  virtual int32_t ordinal() const noexcept = 0;

  virtual FlatMath& math() noexcept = 0;  // [any-thread]

  // Host memory that the device reads and writes by itself, so that a copy from or to it goes on
  // after Device::Copy has returned: such memory may not be touched until the copy is known to be
  // done. (Other host memory that Device::Copy reads may be reused when it returns.) [setup]
  virtual Status AllocateHost(size_t size_bytes, void** out) noexcept = 0;
  virtual void FreeHost(void* memory) noexcept = 0;

  // Between the two, what this thread queues on `stream` is recorded and not done. Nothing may wait
  // for the stream meanwhile. After an error the stream is as before BeginRecording. Owned by the
  // caller. [compute-lane]
  virtual Status BeginRecording(Stream* stream) noexcept = 0;
  virtual Status EndRecording(Stream* stream, Recording** out) noexcept = 0;

  // What the device found wrong with the data of earlier work (a token outside of the vocabulary),
  // without waiting for it; OK when nothing is known. Stays. [any-thread]
  virtual Status Fault() noexcept = 0;

 protected:
  ~Accelerator() = default;
};

}  // namespace engine
