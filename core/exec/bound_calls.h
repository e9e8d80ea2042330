// The op calls of a program, bound to the memory of a model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/graph/program.h"
#include "core/plugin/plugin_set.h"

namespace engine::exec {

class ModelMemory;

// What ops are told of the step that they run in; by default of none, as in evaluation.
struct CallContext {
  bool training = false;
  bool adds = false;  // gradients of parameters are added to those of an earlier micro-batch
  uint64_t step = 0;
  uint64_t first_sample = 0;     // position of the batch's first sample in that of all ranks
  Replicas* replicas = nullptr;  // for ops that ask for them
};

class BoundCalls {
 public:
  // `memory` is borrowed; used from Bind on.
  explicit BoundCalls(const ModelMemory& memory) : memory_(memory) {}

  // `factory` makes the op "accumulate"; `watch`, which may be null, knows which op runs. [setup]
  Status Bind(const plugin::OpFactory& factory, base::CallWatch* watch);
  // kConfig names the layer and the parameter of a backward instruction that cannot add to a
  // gradient (CallContext::adds). [setup]
  Status CheckCanAdd() const;
  // Every following call works on that many samples. [compute-lane]
  void SetSamples(int64_t samples);
  // Runs one instruction of the program. [compute-lane]
  Status Run(int32_t instruction, const CallContext& context);
  TensorView ViewOfValue(graph::ValueId value) const;

 private:
  struct Bound {  // one instruction
    std::vector<TensorView> inputs, outputs, output_grads, input_grads;
    OpCall call;
    Op* op = nullptr;
    uint32_t parameter_grads = 0;    // inputs whose gradient is that of a parameter
    uint32_t gradient_in_place = 0;  // OpCall's, while training
    bool asks_for_replicas = false;
    std::string plugin, name;  // for messages: "plugin 'x'", "forward of 'fc1' (linear)"
    const base::CallWatch::Call* watched = nullptr;
  };
  // Views whose leading dimension is a multiple of the number of samples.
  struct Batched {
    std::vector<TensorView>* views;
    size_t index;
    int64_t per_sample;
  };

  TensorView ViewOfGradient(graph::GradientId gradient) const;
  Status BindAdd(const plugin::OpFactory& factory, const graph::Instruction& instruction,
                 Bound* bound);
  void BindNode(const graph::Instruction& instruction, Bound* bound);
  void AddView(std::vector<TensorView>* views, const TensorView& view, graph::ValueId of);

  const ModelMemory& memory_;
  base::CallWatch* watch_ = nullptr;
  std::vector<Bound> bound_;  // per instruction
  std::vector<Batched> batched_;
  std::vector<std::unique_ptr<Op>> add_ops_;
  int64_t samples_ = -1;
};

}  // namespace engine::exec
