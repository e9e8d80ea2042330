// What a device offers whose memory the host cannot reach and whose work goes on after the call
// that asks for it has returned.
//
// On such a device all of a step is queued without waiting for any of it: what the host decides by
// a number that the device computes (how many targets a step had, how long its gradient is) is
// decided by the device, in arithmetic on flat arrays (FlatMath), and what changes from step to
// step is read from device memory (StepScalars), so that the work of a step can be recorded once
// and replayed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/device.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine {

// What a FlatKernel works on: equally long arrays, single numbers, or null where it can do without.
// Which is which, the kernel says.
struct FlatSpan {
  void* arrays[6] = {};   // device memory
  int64_t count = 0;      // elements
  float numbers[2] = {};  // of this span
};
ENGINE_LAYOUT(FlatSpan, arrays, count, numbers);

struct FlatCall {
  uint64_t struct_size = sizeof(FlatCall);
  Array<const FlatSpan> spans = {};
  Span<const float> numbers = {};        // for all spans
  float* shared = nullptr;               // device memory, for all spans
  const StepScalars* scalars = nullptr;  // device memory
  Stream* stream = nullptr;
};
ENGINE_LAYOUT(FlatCall, struct_size, spans, numbers, shared, scalars, stream);

// Arithmetic on flat arrays that a device has for a plugin other than the core: an optimizer, a
// hook. The two agree on the name and on what the fields of a call mean; the core knows neither, so
// both may come from a third party.
ENGINE_INTERFACE(FlatKernel, Interface, "engine.flat_kernel.draft/1", Run);
class FlatKernelBase : public Implements<FlatKernel> {
 public:
  // Queues the work on all spans. The call is read before this returns. kInvalidArgument for one
  // that is not of this kernel. [compute-lane]
  virtual Status Run(const FlatCall& call) noexcept = 0;

 protected:
  ~FlatKernelBase() = default;
};
// Arithmetic on flat arrays in device memory, queued on `stream`. Results are the same in every
// run: sums have one order.
ENGINE_INTERFACE(FlatMath, Interface, "engine.flat_math.draft/1", FindKernel, FillQuotient, Convert,
                 Add);
class FlatMathBase : public Implements<FlatMath> {
 public:
  // The kernel called `name`, which lives as long as the device. FindKernel gives null for a name
  // that it does not know. [setup]
  virtual FlatKernel* FindKernel(std::string_view name) noexcept = 0;

  // FillQuotient: scales[i] = factor / *divisor, or factor where the divisor is 0, for `count` scales.
  // [compute-lane]
  virtual Status FillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                              Stream* stream) noexcept = 0;

  // target[i] = source[i] in another type: kFloat32, kBFloat16 or kFloat16. Convert rounds between
  // float32 and 16 bits to nearest, ties to even; kUnsupported for types that it does not know.
  // Arrays do not overlap. [compute-lane]
  virtual Status Convert(const void* source, DType from, void* target, DType to, int64_t count,
                         Stream* stream) noexcept = 0;
  // target[i] += source[i]. [compute-lane]
  virtual Status Add(float* target, const float* source, int64_t count,
                     Stream* stream) noexcept = 0;

 protected:
  ~FlatMathBase() = default;
};
// The work of a stream between two points, to be done again. The addresses in it stay those of the
// recording.
ENGINE_INTERFACE(Recording, Object, "engine.recording.draft/1", Launch);
class RecordingBase : public Implements<Recording> {
 public:
  // Queues all of it on `stream` and returns at once. [compute-lane]
  virtual Status Launch(Stream* stream) noexcept = 0;
};
// Query<Accelerator> of a Device gives one, or null for a device whose memory is host memory and
// whose work is done when the call returns. It lives as long as the device.
ENGINE_INTERFACE(Accelerator, Interface, "engine.accelerator.draft/1", ordinal, math, AllocateHost,
                 FreeHost, BeginRecording, EndRecording, Fault);
class AcceleratorBase : public Implements<Accelerator> {
 public:
  // The number by which the device's own library knows it (cudaSetDevice). [any-thread]
  virtual int32_t ordinal() const noexcept = 0;

  virtual FlatMath& math() noexcept = 0;  // [any-thread]

  // Host memory that the device reads and writes by itself, so that a copy from or to it goes on
  // after Device::Copy has returned: such memory may not be touched until the copy is known to be
  // done. AllocateHost gives host memory that copies read and write after Copy has returned; other
  // host memory that Device::Copy reads may be reused when it returns. [setup]
  virtual Status AllocateHost(size_t size_bytes, void** out) noexcept = 0;
  // Gives it back; null is ignored. [setup]
  virtual void FreeHost(void* memory) noexcept = 0;

  // Begins to record what this thread queues on `stream`, until EndRecording. What is queued on a
  // stream while it records is not done, but by each Launch. Nothing may wait for the stream
  // meanwhile. [compute-lane]
  virtual Status BeginRecording(Stream* stream) noexcept = 0;
  // *out = what was recorded, owned by the caller. After an error the stream is as before
  // BeginRecording. [compute-lane]
  virtual Status EndRecording(Stream* stream, Recording** out) noexcept = 0;

  // What the device found wrong with the data of earlier work (a token outside of the vocabulary),
  // without waiting for it; OK when nothing is known. Stays. [any-thread]
  virtual Status Fault() noexcept = 0;

 protected:
  ~AcceleratorBase() = default;
};

}  // namespace engine
