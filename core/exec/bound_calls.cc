// Op calls are bound to addresses once. From step to step only the leading dimension of batched
// tensors changes (SetSamples), and what Run sets in the call, so a step allocates nothing here.
#include "core/exec/bound_calls.h"

#include <bit>
#include <utility>

#include "core/exec/model_memory.h"

namespace engine::exec {

TensorView BoundCalls::ViewOfValue(graph::ValueId value) const {
  const TensorSpec& spec = memory_.graph_.values[value].spec;
  return {.data = memory_.AddressOf(memory_.plan_.of_value[value]),
          .shape = spec.shape,
          .dtype = spec.dtype};
}

TensorView BoundCalls::ViewOfGradient(graph::GradientId gradient) const {
  if (gradient == graph::kNone) return {};
  const graph::Value& of = memory_.graph_.values[memory_.program_.gradients[gradient].of];
  return {.data = memory_.AddressOf(memory_.plan_.of_gradient[gradient]),
          .shape = of.spec.shape,
          .dtype = of.kind == graph::ValueKind::kParameter ? DType::kFloat32 : of.spec.dtype};
}

void BoundCalls::AddView(std::vector<TensorView>* views, const TensorView& view,
                         graph::ValueId of) {
  const TensorSpec& spec = memory_.graph_.values[of].spec;
  const int64_t per_sample = spec.shape[0] / memory_.graph_.max_samples;
  if (spec.batched != 0) batched_.push_back({views, views->size(), per_sample});
  views->push_back(view);
}

Status BoundCalls::Bind(const plugin::OpFactory& factory, base::CallWatch* watch) {
  watch_ = watch;
  bound_.resize(memory_.program_.instructions.size());
  for (size_t k = 0; k < bound_.size(); ++k) {
    const graph::Instruction& instruction = memory_.program_.instructions[k];
    Bound& bound = bound_[k];
    if (instruction.kind == graph::InstructionKind::kAdd) {
      ENGINE_RETURN_IF_ERROR(BindAdd(factory, instruction, &bound));
    } else {
      BindNode(instruction, &bound);
    }
    if (watch != nullptr) bound.watched = watch->Describe(bound.plugin, bound.name);
    bound.call.inputs = bound.inputs;
    bound.call.outputs = bound.outputs;
    bound.call.output_grads = bound.output_grads;
    bound.call.input_grads = bound.input_grads;
    bound.call.workspace = memory_.workspace_.data();
    bound.call.stream = memory_.stream();
    bound.call.seed = memory_.seed_;
    bound.call.scalars = memory_.scalars();
  }
  return {};
}

// target += source, by the op that every library of ops has for it. In place. A source may be the
// gradient of a view, which has the elements of the target in another shape.
Status BoundCalls::BindAdd(const plugin::OpFactory& factory, const graph::Instruction& instruction,
                           Bound* bound) {
  const graph::ValueId of = memory_.program_.gradients[instruction.target].of;
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Op> op, factory("accumulate", {}));
  TensorSpec spec = memory_.graph_.values[of].spec;
  if (memory_.graph_.values[of].kind == graph::ValueKind::kParameter) spec.dtype = DType::kFloat32;
  const TensorSpec specs[2] = {spec, spec};
  OpSignature signature;
  ENGINE_RETURN_IF_ERROR(op->Infer(specs, &signature));
  AddView(&bound->inputs, ViewOfGradient(instruction.target), of);
  TensorView source = ViewOfGradient(instruction.source);
  source.shape = spec.shape;
  AddView(&bound->inputs, source, of);
  AddView(&bound->outputs, ViewOfGradient(instruction.target), of);
  bound->op = op.get();
  bound->plugin = "op 'accumulate'";
  bound->name = "sum of the gradients of '" + memory_.graph_.values[of].name + "'";
  add_ops_.push_back(std::move(op));
  return {};
}

// An op is told which gradients lie in the memory of their inputs, in its backward call and in the
// forward call before it, which may then leave the input as it likes.
void BoundCalls::BindNode(const graph::Instruction& instruction, Bound* bound) {
  const graph::Node& node = memory_.graph_.nodes[instruction.node];
  const auto add = [&](graph::ValueId value, std::vector<TensorView>* views) {
    AddView(views, ViewOfValue(instruction.Of(memory_.graph_, value)), value);
  };
  for (const graph::ValueId input : node.inputs) add(input, &bound->inputs);
  for (const graph::ValueId output : node.outputs) add(output, &bound->outputs);
  const bool backward = instruction.kind == graph::InstructionKind::kBackward;
  if (backward) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      AddView(&bound->output_grads, ViewOfGradient(instruction.output_grads[i]), node.outputs[i]);
    }
    for (size_t i = 0; i < instruction.input_grads.size(); ++i) {
      const graph::GradientId gradient = instruction.input_grads[i];
      AddView(&bound->input_grads, ViewOfGradient(gradient), node.inputs[i]);
      if (gradient == graph::kNone) continue;
      const graph::StorageId place = memory_.plan_.of_gradient[gradient];
      if (place == memory_.plan_.of_value[instruction.Of(memory_.graph_, node.inputs[i])]) {
        bound->gradient_in_place |= 1u << i;
        bound_[instruction.forward].gradient_in_place |= 1u << i;
      }
      const graph::Storage& storage = memory_.plan_.storages[place];
      if (storage.kind != graph::StorageKind::kParameterGradient) continue;
      ENGINE_CHECK(memory_.program_.gradients[gradient].of == node.inputs[i],
                   "shared with an activation");
      bound->parameter_grads |= 1u << i;
    }
  }
  const graph::StorageId saved = memory_.plan_.of_saved[instruction.forward];
  bound->call.saved = saved == graph::kNone ? nullptr : memory_.AddressOf(saved);
  bound->call.node = static_cast<uint64_t>(instruction.node);
  bound->asks_for_replicas = node.signature.uses_replicas != 0;
  bound->op = node.op.get();
  bound->plugin = node.plugin;
  bound->name = std::string(backward ? "backward" : "forward") + " of '" + node.name + "' (" +
                node.op_name + ")";
}

// Bound calls refer to the views by spans, so it is enough to change those.
void BoundCalls::SetSamples(int64_t samples) {
  if (samples == samples_) return;
  samples_ = samples;
  for (const auto& [views, index, per_sample] : batched_) {
    (*views)[index].shape[0] = per_sample * samples;
  }
}

Status BoundCalls::CheckCanAdd() const {
  for (size_t k = 0; k < bound_.size(); ++k) {
    const graph::Instruction& instruction = memory_.program_.instructions[k];
    const graph::Node& node = memory_.graph_.nodes[instruction.node];
    const uint32_t cannot = bound_[k].parameter_grads & ~node.signature.accumulates;
    if (cannot == 0) continue;
    const graph::Value& value = memory_.graph_.values[node.inputs[std::countr_zero(cannot)]];
    return Status::Error(StatusCode::kConfig,
                         "train.micro_batches: the op '%s' of layer '%s' cannot add to the "
                         "gradient of '%s' that the micro-batch before has left: set it to 1 or "
                         "freeze that parameter",
                         node.op_name.c_str(), node.name.c_str(), value.name.c_str());
  }
  return {};
}

// From the second micro-batch on gradients of parameters are added to, and to those alone: what lies
// between layers is written anew in each pass.
Status BoundCalls::Run(int32_t instruction, const CallContext& context) {
  Bound& bound = bound_[instruction];
  bound.call.step = context.step;
  bound.call.training = context.training ? 1 : 0;
  bound.call.gradient_in_place = context.training ? bound.gradient_in_place : 0;
  bound.call.first_sample = context.first_sample;
  bound.call.accumulate = memory_.program_.instructions[instruction].accumulate |
                          (context.adds ? bound.parameter_grads : 0);
  bound.call.replicas = bound.asks_for_replicas ? context.replicas : nullptr;
  const bool backward =
      memory_.program_.instructions[instruction].kind == graph::InstructionKind::kBackward;
  const base::OpenCall open(watch_, base::CallWatch::kCompute, bound.watched);
  return plugin::Answer(backward ? bound.op->Backward(bound.call) : bound.op->Forward(bound.call))
      .WithContext("%s: %s", bound.plugin.c_str(), bound.name.c_str());
}

}  // namespace engine::exec
