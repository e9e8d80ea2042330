// Arithmetic on one device.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/device.h"
#include "engine/options.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine {

constexpr int32_t kMaxOpInputs = 12;  // data inputs and parameters together
constexpr int32_t kMaxOpOutputs = 4;

enum class Initializer : int32_t {
  kZeros = 0,
  kOnes = 1,
  kNormal = 2,   // mean 0, standard deviation `scale`
  kUniform = 3,  // in [-scale, scale)
  // Of a model's own parameters: a constant (a mask, a table of positions), whose values the model
  // gives (ext/initial_values.h). Not trained, and not kept in checkpoints.
  kConstant = 4,
};

// A parameter that an op wants to be made for it. Parameters follow the data inputs in every list
// of inputs.
struct ParameterSpec {
  FixedString<32> name = {};  // "weight": the graph makes "<layer>.weight" of it
  Shape shape = {};
  Initializer initializer = Initializer::kZeros;
  float scale = 0;       // of kNormal and kUniform; see Initializer
  uint32_t decay = 1;    // whether weight decay applies (not for biases and norms)
  uint32_t trained = 1;  // 0: a buffer that Forward itself changes while it trains (running
                         // statistics): no gradient, no optimizer; kept in checkpoints
  DType dtype = DType::kFloat32;  // in which Forward and Backward read it: kFloat32, or kBFloat16,
                                  // a copy that follows the parameter. The core keeps and updates
                                  // float32 in any case, and a buffer is float32
};
ENGINE_LAYOUT(ParameterSpec, name, shape, initializer, scale, decay, trained, dtype);

// What an op says of itself once it knows its inputs. Bit i of an input mask is input i (data
// inputs first, then parameters). What Infer says fits together: counts are within their limits,
// masks name inputs, every trained parameter has a name, a shape and a gradient, a loss is
// float32[3]. in_place_of, gradient_in_place, passes_gradient and equal_gradients allow the core to
// share memory; the results are the same with it and without.
struct OpSignature {
  uint64_t struct_size = sizeof(OpSignature);
  int32_t parameter_count = 0;
  ParameterSpec parameters[kMaxOpInputs];
  int32_t output_count = 0;
  TensorSpec outputs[kMaxOpOutputs];

  int64_t saved_bytes = 0;      // written by Forward for Backward, kept in between
  int64_t workspace_bytes = 0;  // scratch during one call; content undefined between calls

  uint32_t differentiable_inputs = 0;  // inputs that Backward can give a gradient for
  // Backward reads no input and no output but those of backward_reads_inputs and
  // backward_reads_outputs: their memory may be another value's by then.
  uint32_t backward_reads_inputs = ~0u;
  uint32_t backward_reads_outputs = ~0u;
  // Inputs whose gradient Backward can add to what is there. For the others the core adds, with the
  // op "accumulate".
  uint32_t accumulates = 0;
  // Inputs whose gradient equals the gradient of output 0 element by element (add, reshape). The
  // core may pass the same memory for both; Backward then finds input_grads[i].data ==
  // output_grads[0].data and has nothing to do for that input.
  uint32_t passes_gradient = 0;
  // Inputs that have one and the same gradient, element by element. The core may give several of
  // them the same memory; Backward then finds input_grads[i].data == input_grads[j].data and writes
  // it once. Where the addresses differ it writes each, and a gradient that it adds to is never
  // shared.
  uint32_t equal_gradients = 0;
  // Inputs whose gradient may be given the memory of the input itself, where nothing else reads the
  // input after this op: see OpCall::gradient_in_place.
  uint32_t gradient_in_place = 0;
  int32_t output_is_view_of =
      -1;                      // this input and output 0 share memory always: Forward does nothing
  int32_t in_place_of = -1;    // output 0 may be given the memory of this input
  uint32_t uses_replicas = 0;  // calls OpCall::replicas while it trains
  // 1: a loss, whose output 0 is float32[3] and gets the gradient {1, 0, 0}. Output 0 of a loss is
  // the sum over targets of the loss, the number of targets and the number of correct predictions:
  // those of parts of a batch add up to those of the batch.
  uint32_t is_loss = 0;
};
ENGINE_LAYOUT(OpSignature, struct_size, parameter_count, parameters, output_count, outputs,
              saved_bytes, workspace_bytes, differentiable_inputs, backward_reads_inputs,
              backward_reads_outputs, accumulates, passes_gradient, equal_gradients,
              gradient_in_place, output_is_view_of, in_place_of, uses_replicas, is_loss);

// The replicas of one op on all ranks, in the pass that is under way: what an op needs to see the
// whole batch of a step. An op that uses replicas gives what one rank gives that has the samples of
// all; in every step and on every rank, with samples or without, it gathers as often and the same
// counts. All replicas make the same calls in the same order, also those without
// samples; and an op makes the same calls in every step: as many, with the counts and the addresses
// of buffers that they had before (a communicator keeps what it prepared for them). [compute-lane]
ENGINE_INTERFACE(Replicas, Interface, "engine.replicas.draft/1", size, rank, Gather);
class ReplicasBase : public Implements<Replicas> {
 public:
  virtual int32_t size() const noexcept = 0;  // at least 2 [any-thread]
  virtual int32_t rank() const noexcept = 0;  // of this replica, from 0 [any-thread]

  // all[r * count + i] becomes own[i] of rank r, whose sum in the order of ranks is therefore the
  // same on all of them. Memory of the op's device; `all` may hold `own` in its place. Blocks until
  // all ranks are there, at most the timeout of a transfer; its errors are those of a transfer. The
  // error of a gather is that of the call. [compute-lane]
  virtual Status Gather(const float* own, int64_t count, float* all, Stream* stream) noexcept = 0;

 protected:
  ~ReplicasBase() = default;
};

// Memory for one call. The gradient of a value has the dtype of the value; that of a parameter is
// float32, whatever the op reads. Shapes have the actual number of samples. The number of samples
// can be 0: gradients of parameters become, or stay, the sum over nothing, and a loss is 0.
struct OpCall {
  uint64_t struct_size = sizeof(OpCall);
  Array<const TensorView> inputs = {};   // data inputs, then parameters
  Array<const TensorView> outputs = {};  // Forward writes; Backward reads if declared
  // Backward reads. The data of an output's gradient is null where none arrives, which counts as
  // zeros; one arrives at least.
  Array<const TensorView> output_grads = {};
  // Backward writes. The data of an input's gradient is null where none is wanted; the others are
  // as always.
  Array<const TensorView> input_grads = {};
  // Where OpCall::accumulate names an input, Backward adds its gradient to what is there, for any
  // of the inputs of OpSignature::accumulates.
  uint32_t accumulate = 0;
  uint32_t training = 1;  // 0 in evaluation: Backward will not follow
  // Inputs whose memory is that of their gradient. While training, Forward may leave there whatever
  // helps Backward, as nobody reads such an input after Forward; Backward gets it as
  // input_grads[i].
  uint32_t gradient_in_place = 0;
  void* saved = nullptr;      // OpSignature::saved_bytes, aligned to 64 bytes
  void* workspace = nullptr;  // OpSignature::workspace_bytes, aligned to 64 bytes
  Stream* stream = nullptr;   // what the call queues goes here; it need not wait for it
  // Random numbers are a function of seed, step, node, first_sample and the position in a sample,
  // so that they are the same for any number of ranks.
  uint64_t seed = 0;          // of the run
  uint64_t step = 0;          // from 1
  uint64_t node = 0;          // the op's number in its graph
  uint64_t first_sample = 0;  // position of the call's first sample in the batch of all ranks
  // Null with one rank, and for ops that do not ask. In evaluation there are no replicas to gather
  // from.
  Replicas* replicas = nullptr;
  // Of an Accelerator: where the device finds `step` and `first_sample`, which are of no use to
  // work that may be replayed. Null on other devices.
  const StepScalars* scalars = nullptr;
};
ENGINE_LAYOUT(OpCall, struct_size, inputs, outputs, output_grads, input_grads, accumulate, training,
              gradient_in_place, saved, workspace, stream, seed, step, node, first_sample, replicas,
              scalars);

// One node of a graph. An op writes nothing beside the memory of the call. The same call gives the
// same bits, whatever came before, from any instance: ops are deterministic for a fixed number of
// threads. Between Forward and Backward of one instance others run, of the same op and of other
// ranks, which may be threads of one process. What becomes of a sample should not depend on others
// of its call, unless the op uses replicas: else several ranks train to something else than one.
//
// Forward writes outputs, saved bytes, workspace and, while it trains, buffers; Backward writes
// gradients of inputs and workspace. All else stays as it is. Forward writes every element of the
// outputs, Backward of the gradients; what they read of memory that nobody has written, nothing
// depends on. After the first call Forward and Backward should allocate no memory for data, which is
// what OpCall::workspace is for: together at most 1 KiB by operator new.
ENGINE_INTERFACE(Op, Object, "engine.op.draft/1", Infer, Forward, Backward);
class OpBase : public Implements<Op> {
 public:
  // Fills `signature` for inputs of a full batch (data inputs only). Infer accepts inputs that fit;
  // for others it gives kConfig and a sentence. Called once, first. [setup]
  virtual Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept = 0;

  // Computes the outputs. A parameter that is not trained is changed by Forward, and only while
  // OpCall::training is set. [compute-lane]
  virtual Status Forward(const OpCall& call) noexcept = 0;
  // Computes what is wanted, after the Forward of the same call. Backward gives the gradients of
  // the differentiable inputs: those that arrive at the outputs times the derivatives of Forward.
  // [compute-lane]
  virtual Status Backward(const OpCall& call) noexcept = 0;
};
// The root object of an op plugin. A library that brings a device has the op "accumulate", with
// which the core adds gradients in place.
ENGINE_INTERFACE(OpLibrary, Object, "engine.op_library.draft/1", device, CreateOp);
class OpLibraryBase : public Implements<OpLibrary> {
 public:
  // The device that the ops run on, or null when the library adds ops to another one's device.
  // [setup]
  virtual Device* device() noexcept = 0;

  // An instance of op `name` (one of those in the descriptor) with checked attributes; the caller
  // deletes it. [setup]
  virtual Status CreateOp(std::string_view name, const Options& attributes, Op** out) noexcept = 0;
};

}  // namespace engine
