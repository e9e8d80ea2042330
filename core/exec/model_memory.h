// The memory of one model on one device, and its op calls bound to that memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/exec/bound_calls.h"
#include "core/exec/layout.h"
#include "core/exec/step.h"
#include "core/graph/device_buffer.h"
#include "core/graph/memory_plan.h"
#include "engine/ext/accelerator.h"

namespace engine::exec {

class ModelMemory {
 public:
  // `layout` says where parameters and gradients lie; `factory` makes the op "accumulate".
  // `shared`, if not null, is where parameters, their copies and gradients are put, so that a
  // communicator need not copy them; it outlives the model. kResourceExhausted names what did not
  // fit. `watch`, if not null, knows which op runs.
  static Result<std::unique_ptr<ModelMemory>> Create(graph::Graph graph, graph::Program program,
                                                     FlatLayout layout, Device& device,
                                                     const plugin::OpFactory& factory,
                                                     uint64_t seed, SharedMemory* shared = nullptr,
                                                     base::CallWatch* watch = nullptr);

  // Tells an accelerator what changes from step to step. Does nothing on other devices.
  // [compute-lane]
  Status SetScalars(const StepScalars& step);
  // Queues a copy of them on `stream`, for updates that are queued there. [compute-lane]
  Status KeepScalars(Stream* stream);

  // Copies `samples` (0 .. max_samples) of a batch, from its sample `begin` on, to the device: the
  // first input, the first target, which may be null in a graph for inference, and what
  // Graph::others says. Every following call works on that many samples. [compute-lane]
  Status SetBatch(const void* input, const void* target, int64_t samples,
                  std::span<const void* const> others = {}, int64_t begin = 0);

  // Backward instructions begin with `scale` as the gradient of the loss, instead of 1.
  // [compute-lane]
  Status SetLossScale(float scale);

  // Runs instructions of the program, from `begin` to before `end`. [compute-lane]
  Status Run(int32_t begin, int32_t end, const CallContext& context);

  // Runs all forward instructions in order, for evaluation and inference. [compute-lane]
  Status RunForward() { return Run(0, program_.forward_count, {}); }

  // Gives parameters the values that they begin with. [setup]
  Status InitializeParameters();

  // Brings the rounded copies of parameters that ops read up to date with the parameters: after
  // anything but an optimizer has written those. Does nothing where ops read the parameters
  // themselves. Of the layout from element `offset` on. [compute-lane]
  Status RefreshCopies(int64_t offset = 0);

  // Waits for what is queued, then reads float32 or bfloat16 elements as float32. Not for the step
  // path. [compute-lane]
  Status ReadFloats(const TensorView& from, float* to) const;
  Result<StepStatistics> ReadStatistics() const;  // as ReadFloats

  const graph::Graph& graph() const { return graph_; }
  const graph::Program& program() const { return program_; }
  const FlatLayout& layout() const { return layout_; }
  const graph::MemoryPlan& plan() const { return plan_; }
  Device& device() const { return device_; }
  Stream* stream() const { return stream_.get(); }

  TensorView parameter(int32_t index) const;
  float* parameters() const { return parameters_.f32(); }  // layout().total_count elements
  std::span<float> buffers() const {                       // of them: see Parameter::buffer
    return {parameters() + layout_.buffer_begin, parameters() + layout_.total_count};
  }
  float* gradients() const { return gradients_.f32(); }  // layout().trainable_count elements
  // The copy that ops read of the parameters from element `offset`, or null: see RefreshCopies.
  void* copy_at(int64_t offset) const {
    return copies_.data() == nullptr ? nullptr : copies_.bytes() + 2 * offset;
  }
  // Two: what the loss op has left of this rank, and the copy that ranks sum up, as backward may read
  // the former meanwhile.
  StepStatistics* statistics() const { return static_cast<StepStatistics*>(statistics_.data()); }
  // Of the last forward pass: (samples, ..., classes).
  TensorView logits() const { return calls_.ViewOfValue(graph_.logits); }

  // Null: all of the above is host memory, and calls have done their work when they return.
  Accelerator* accelerator() const { return accelerator_; }
  // Of an accelerator: 0: those that were set last, 1: those that were kept last.
  StepScalars* scalars(int copy = 0) const {
    return static_cast<StepScalars*>(scalars_.data()) + copy;
  }
  const BoundCalls& calls() const { return calls_; }

 private:
  friend class BoundCalls;
  ModelMemory(graph::Graph graph, graph::Program program, FlatLayout layout, Device& device,
              uint64_t seed);
  Status Allocate(SharedMemory* shared);
  void* AddressOf(graph::StorageId storage) const;

  graph::Graph graph_;
  graph::Program program_;
  FlatLayout layout_;
  graph::MemoryPlan plan_;
  Device& device_;
  Accelerator* const accelerator_;
  const uint64_t seed_;
  std::unique_ptr<Stream> stream_;
  graph::DeviceBuffer parameters_, gradients_, activations_, workspace_, inputs_, statistics_,
      seed_gradient_;
  // Of parameters, in the layout of parameters_; empty: ops read those.
  graph::DeviceBuffer copies_;
  graph::DeviceBuffer scalars_;  // two StepScalars, of an accelerator
  BoundCalls calls_;             // last: it uses all of the above
};

// `buffers` times `elements` float32 zeros beside a model, for `what`.
Result<std::vector<graph::DeviceBuffer>> Zeros(const ModelMemory& memory, int32_t buffers,
                                               int64_t elements, const char* what);

// Of what is kept for each trained element, in the layout of gradients: the part of a parameter. Null
// data for one that is not trained, or a null `arena`.
TensorView ViewIn(const ModelMemory& memory, float* arena, int32_t parameter);

}  // namespace engine::exec
