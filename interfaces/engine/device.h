// Memory and order on one device. An op plugin brings its device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/abi/interface.h"
#include "engine/status.h"

namespace engine {
// What changes from step to step, in the memory of an Accelerator (ext/accelerator.h), written in
// the order of the stream.
struct StepScalars {
  uint64_t step = 0;          // of the passes, from 1: OpCall::step
  uint64_t first_sample = 0;  // OpCall::first_sample
  uint64_t update_step = 0;   // of the updates: UpdateCall::step
  float learning_rate = 0;    // of the updates, before factors of single parameters
  float reserved = 0;         // 0
};
ENGINE_LAYOUT(StepScalars, step, first_sample, update_step, learning_rate, reserved);

// A point in the work of a stream. Created by Device, recorded and waited for by Stream.
ENGINE_INTERFACE(Event, Object, "engine.event.draft/1", WaitHost, native);
class EventBase : public Implements<Event> {
 public:
  // Blocks the calling thread until the recorded point is reached; kTimeout if it is not by then.
  // [any-thread]
  virtual Status WaitHost(int64_t timeout_ms) noexcept = 0;
  // The handle of the device library (cudaEvent_t), or null on the CPU. [any-thread]
  virtual void* native() noexcept = 0;
};
// A queue of work that runs in order. On the CPU work is done when the call that asks for it
// returns, so a stream is only a token there.
ENGINE_INTERFACE(Stream, Object, "engine.stream.draft/1", Record, Wait, Synchronize, native);
class StreamBase : public Implements<Stream> {
 public:
  // Marks the end of the work queued so far. [compute-lane]
  virtual Status Record(Event* event) noexcept = 0;
  // Does not block the caller. What is queued on a stream after Wait starts after what was queued
  // on another before Record; WaitHost ends when that is done. [compute-lane]
  virtual Status Wait(Event* event) noexcept = 0;
  // Blocks until all queued work is done. Not for the step path. [any-thread]
  virtual Status Synchronize(int64_t timeout_ms) noexcept = 0;
  // The handle of the device library (cudaStream_t), or null on the CPU. [any-thread]
  virtual void* native() noexcept = 0;
};

ENGINE_INTERFACE(Device, Object, "engine.device.draft/1", type, Allocate, Free, Copy, Zero,
                 CreateStream, CreateEvent);
class DeviceBase : public Implements<Device> {
 public:
  // "cpu" or "cuda"; static lifetime. [any-thread]
  virtual const char* type() const noexcept = 0;

  // Memory is aligned to at least 64 bytes, and the caller's until Free; it is not zeroed. Meant
  // for a few large arenas, not for the step path. More memory than there is gives
  // kResourceExhausted, which names the size. [setup]
  virtual Status Allocate(size_t size_bytes, void** out) noexcept = 0;
  virtual void Free(void* memory) noexcept = 0;  // [setup]

  // Host or device memory to host or device memory. Copies and Zero touch the bytes they name, in
  // the order of the stream. [compute-lane]
  virtual Status Copy(void* target, const void* source, size_t size_bytes,
                      Stream* stream) noexcept = 0;
  virtual Status Zero(void* target, size_t size_bytes,
                      Stream* stream) noexcept = 0;  // [compute-lane]

  // A stream of its own, owned by the caller. [setup]
  virtual Status CreateStream(Stream** out) noexcept = 0;
  // An event that is not recorded yet, owned by the caller. [setup]
  virtual Status CreateEvent(Event** out) noexcept = 0;
};

}  // namespace engine
