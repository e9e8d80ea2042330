// The memory of one model on one device, and its op calls bound to that memory.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exec/layout.h"
#include "core/graph/builder.h"
#include "core/graph/device_buffer.h"
#include "core/graph/memory_plan.h"
#include "engine/ext/accelerator.h"

namespace engine {

// What the ranks of a step sum up: the loss op writes the first three, the executor the others.
struct StepStatistics {
  float loss_sum = 0;         // over targets
  float count = 0;            // of targets
  float correct = 0;          // predictions
  float stop = 0;             // ranks that were asked to stop
  float order_bits[16] = {};  // OrderLog::DigestBits of each rank
};

// What ops are told of the step that they run in; by default of none, as in evaluation.
struct CallContext {
  bool training = false;
  bool adds = false;  // gradients of parameters are added to those of an earlier micro-batch
  uint64_t step = 0;
  uint64_t first_sample = 0;     // position of the batch's first sample in that of all ranks
  Replicas* replicas = nullptr;  // for ops that ask for them
};

class ModelMemory {
 public:
  // `layout` says where parameters and gradients lie; `factory` makes the op "accumulate".
  // `shared`, if not null, is where parameters, their copies and gradients are put, so that a
  // communicator need not copy them; it outlives the model. kResourceExhausted names what did not
  // fit.
  static Result<std::unique_ptr<ModelMemory>> Create(Graph graph, Program program,
                                                     FlatLayout layout, Device& device,
                                                     const OpFactory& factory, uint64_t seed,
                                                     SharedMemory* shared = nullptr);

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

  // Backward instructions begin with `scale` as the gradient of the loss, instead of 1. [setup]
  Status SetLossScale(float scale);

  // kConfig names the layer and the parameter of a backward instruction that cannot add to a
  // gradient (CallContext::adds). [setup]
  Status CheckCanAdd() const;

  // Runs one instruction of the program. [compute-lane]
  Status Run(int32_t instruction, const CallContext& context);

  // Runs all forward instructions in order, for evaluation and inference. [compute-lane]
  Status RunForward();

  // Fills parameters by their initialisers: a function of seed, name and position only. [setup]
  Status InitializeParameters();

  // Brings the rounded copies of parameters that ops read up to date with the parameters: after
  // anything but an optimizer has written those. Does nothing where ops read the parameters
  // themselves. [compute-lane]
  Status RefreshCopies() { return RefreshCopies(0, layout_.total_count); }
  // Those of `count` elements of the layout from `offset` on.
  Status RefreshCopies(int64_t offset, int64_t count);

  // Waits for what is queued, then reads float32 or bfloat16 elements as float32. Not for the step
  // path. [compute-lane]
  Status ReadFloats(const TensorView& from, float* to) const;
  Result<StepStatistics> ReadStatistics() const;  // as ReadFloats

  const Graph& graph() const { return graph_; }
  const Program& program() const { return program_; }
  const FlatLayout& layout() const { return layout_; }
  const MemoryPlan& plan() const { return plan_; }
  Device& device() const { return device_; }
  Stream* stream() const { return stream_.get(); }

  TensorView parameter(int32_t index) const;
  float* parameters() const { return parameters_.f32(); }  // layout().total_count elements
  float* gradients() const { return gradients_.f32(); }    // layout().trainable_count elements
  // The copy that ops read of the parameters from element `offset`, or null: see RefreshCopies.
  void* copy_at(int64_t offset) const {
    return copies_.data() == nullptr ? nullptr : copies_.bytes() + 2 * offset;
  }
  StepStatistics* statistics() const { return static_cast<StepStatistics*>(statistics_.data()); }
  TensorView logits() const;  // of the last forward pass: (samples, ..., classes)
  // Another output of the model. kConfig when it has none of this name.
  Result<TensorView> output(const std::string& name) const;

  // Null: all of the above is host memory, and calls have done their work when they return.
  Accelerator* accelerator() const { return accelerator_; }
  // Of an accelerator: those that were set last, and those that were kept last.
  StepScalars* scalars() const { return static_cast<StepScalars*>(scalars_.data()); }
  StepScalars* kept_scalars() const { return scalars() + 1; }

 private:
  struct Bound {  // one instruction
    std::vector<TensorView> inputs, outputs, output_grads, input_grads;
    OpCall call;
    Op* op = nullptr;
    uint32_t parameter_grads = 0;    // inputs whose gradient is that of a parameter
    uint32_t gradient_in_place = 0;  // OpCall's, while training
    bool asks_for_replicas = false;
    std::string name;  // for messages: "forward of 'fc1' (linear)"
  };

  ModelMemory(Graph graph, Program program, FlatLayout layout, Device& device, uint64_t seed);
  Status Allocate(SharedMemory* shared);
  Status Bind(const OpFactory& factory);
  Status BindAdd(const OpFactory& factory, const Instruction& instruction, Bound* bound);
  void BindNode(const Instruction& instruction, Bound* bound);
  void* AddressOf(StorageId storage) const;
  TensorView ViewOfValue(ValueId value) const;
  TensorView ViewOfGradient(GradientId gradient) const;
  void SetSamples(int64_t samples);

  Graph graph_;
  Program program_;
  FlatLayout layout_;
  MemoryPlan plan_;
  Device& device_;
  Accelerator* const accelerator_;
  const uint64_t seed_;
  std::unique_ptr<Stream> stream_;
  DeviceBuffer parameters_, gradients_, activations_, workspace_, inputs_, statistics_,
      seed_gradient_;
  DeviceBuffer copies_;   // of parameters, in the layout of parameters_; empty: ops read those
  DeviceBuffer scalars_;  // two StepScalars, of an accelerator
  std::vector<size_t> input_offset_;  // per value
  std::vector<Bound> bound_;          // per instruction
  std::vector<std::unique_ptr<Op>> add_ops_;
  int64_t samples_ = -1;
};

}  // namespace engine
