#include "core/exec/model_memory.h"

#include <algorithm>
#include <bit>

#include "core/exec/initialize.h"

namespace engine {
namespace {

constexpr int64_t kSetupTimeoutMs = 60000;

}  // namespace

Result<std::unique_ptr<ModelMemory>> ModelMemory::Create(Graph graph, Program program,
                                                         FlatLayout layout, Device& device,
                                                         const OpFactory& factory, uint64_t seed,
                                                         SharedMemory* shared) {
  std::unique_ptr<ModelMemory> memory(
      new ModelMemory(std::move(graph), std::move(program), std::move(layout), device, seed));
  ENGINE_RETURN_IF_ERROR(memory->Allocate(shared));
  ENGINE_RETURN_IF_ERROR(memory->Bind(factory));
  memory->SetSamples(memory->graph_.max_samples);
  return memory;
}

ModelMemory::ModelMemory(Graph graph, Program program, FlatLayout layout, Device& device,
                         uint64_t seed)
    : graph_(std::move(graph)),
      program_(std::move(program)),
      layout_(std::move(layout)),
      plan_(PlanMemory(graph_, program_)),
      device_(device),
      accelerator_(static_cast<Accelerator*>(device.Query(kAcceleratorId))),
      seed_(seed) {}

Status ModelMemory::Allocate(SharedMemory* shared) {
  Stream* stream = nullptr;
  ENGINE_RETURN_IF_ERROR(device_.CreateStream(&stream));
  stream_.reset(stream);
  size_t input_bytes = 0;
  for (const Value& value : graph_.values) {
    input_offset_.push_back(input_bytes);
    if (value.kind != ValueKind::kInput) continue;
    input_bytes += static_cast<size_t>(value.spec.shape.Count()) * SizeOf(value.spec.dtype);
    input_bytes = (input_bytes + 63) / 64 * 64;
  }
  const auto keep = [](DeviceBuffer* buffer, Result<DeviceBuffer> made,
                       const char* what) -> Status {
    if (!made.ok()) return made.status().WithContext("memory for %s", what);
    *buffer = std::move(*made);
    return {};
  };
  const auto make = [&](DeviceBuffer* buffer, size_t size_bytes, const char* what) {
    return keep(buffer, DeviceBuffer::Create(device_, size_bytes, stream), what);
  };
  const auto make_sent = [&](DeviceBuffer* buffer, int64_t count, DType dtype, const char* what) {
    const size_t size_bytes = static_cast<size_t>(count) * SizeOf(dtype);
    if (shared == nullptr) return make(buffer, size_bytes, what);
    return keep(buffer, DeviceBuffer::CreateShared(*shared, size_bytes), what);
  };
  ENGINE_RETURN_IF_ERROR(
      make_sent(&parameters_, layout_.total_count, DType::kFloat32, "parameters"));
  if (graph_.loss != kNone) {
    ENGINE_RETURN_IF_ERROR(
        make_sent(&gradients_, layout_.trainable_count, DType::kFloat32, "gradients"));
  }
  const auto is_copied = [](const Value& value) {
    return value.kind == ValueKind::kParameter && value.spec.dtype != DType::kFloat32;
  };
  if (std::any_of(graph_.values.begin(), graph_.values.end(), is_copied)) {
    ENGINE_CHECK(accelerator_ != nullptr, "ops read rounded parameters on a device that has none");
    ENGINE_RETURN_IF_ERROR(
        make_sent(&copies_, layout_.total_count, DType::kBFloat16, "parameters in bfloat16"));
  }
  if (accelerator_ != nullptr) {
    ENGINE_RETURN_IF_ERROR(make(&scalars_, 2 * sizeof(StepScalars), "numbers of a step"));
  }
  ENGINE_RETURN_IF_ERROR(make(&activations_, plan_.arena_bytes, "activations"));
  ENGINE_RETURN_IF_ERROR(make(&workspace_, plan_.workspace_bytes, "the workspace of ops"));
  ENGINE_RETURN_IF_ERROR(make(&inputs_, input_bytes, "batches"));
  ENGINE_RETURN_IF_ERROR(make(&statistics_, sizeof(StepStatistics), "statistics"));
  ENGINE_RETURN_IF_ERROR(make(&seed_gradient_, sizeof(StepStatistics), "statistics"));
  return SetLossScale(1);
}

Status ModelMemory::SetLossScale(float scale) {
  const float seed_gradient[3] = {scale, 0, 0};
  ENGINE_RETURN_IF_ERROR(
      device_.Copy(seed_gradient_.data(), seed_gradient, sizeof(seed_gradient), stream_.get()));
  return stream_->Synchronize(kSetupTimeoutMs);
}

Status ModelMemory::CheckCanAdd() const {
  for (size_t k = 0; k < bound_.size(); ++k) {
    const Instruction& instruction = program_.instructions[k];
    const Node& node = graph_.nodes[instruction.node];
    const uint32_t cannot = bound_[k].parameter_grads & ~node.signature.accumulates;
    if (cannot == 0) continue;
    const Value& value = graph_.values[node.inputs[std::countr_zero(cannot)]];
    return Status::Error(
        StatusCode::kConfig,
        "train.micro_batches: the op '%s' of layer '%s' cannot add to the gradient "
        "of '%s' that the micro-batch before has left: set it to 1 or freeze "
        "that parameter",
        node.op_name.c_str(), node.name.c_str(), value.name.c_str());
  }
  return {};
}

void* ModelMemory::AddressOf(StorageId id) const {
  const Storage& storage = plan_.storages[id];
  switch (storage.kind) {
    case StorageKind::kArena:
      return activations_.bytes() + storage.offset;
    case StorageKind::kInput:
      return inputs_.bytes() + input_offset_[storage.index];
    case StorageKind::kParameter: {
      const int64_t offset = layout_.offset[storage.index];
      const bool copied =
          graph_.values[graph_.parameters[storage.index].value].spec.dtype != DType::kFloat32;
      return copied ? copy_at(offset) : parameters_.f32() + offset;
    }
    case StorageKind::kParameterGradient:
      return gradients_.f32() + layout_.offset[storage.index];
    case StorageKind::kLoss:
      return statistics_.data();
    case StorageKind::kSeed:
      return seed_gradient_.data();
  }
  return nullptr;
}

TensorView ModelMemory::ViewOfValue(ValueId value) const {
  const TensorSpec& spec = graph_.values[value].spec;
  return {.data = AddressOf(plan_.of_value[value]), .shape = spec.shape, .dtype = spec.dtype};
}

TensorView ModelMemory::ViewOfGradient(GradientId gradient) const {
  if (gradient == kNone) return {};
  const Value& of = graph_.values[program_.gradients[gradient].of];
  return {.data = AddressOf(plan_.of_gradient[gradient]),
          .shape = of.spec.shape,
          .dtype = of.kind == ValueKind::kParameter ? DType::kFloat32 : of.spec.dtype};
}

Status ModelMemory::Bind(const OpFactory& factory) {
  bound_.resize(program_.instructions.size());
  for (size_t k = 0; k < bound_.size(); ++k) {
    const Instruction& instruction = program_.instructions[k];
    Bound& bound = bound_[k];
    if (instruction.kind == InstructionKind::kAdd) {
      ENGINE_RETURN_IF_ERROR(BindAdd(factory, instruction, &bound));
    } else {
      BindNode(instruction, &bound);
    }
    bound.call.inputs = bound.inputs;
    bound.call.outputs = bound.outputs;
    bound.call.output_grads = bound.output_grads;
    bound.call.input_grads = bound.input_grads;
    bound.call.workspace = workspace_.data();
    bound.call.stream = stream_.get();
    bound.call.seed = seed_;
    bound.call.scalars = scalars();
  }
  return {};
}

Status ModelMemory::BindAdd(const OpFactory& factory, const Instruction& instruction,
                            Bound* bound) {
  const ValueId of = program_.gradients[instruction.target].of;
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Op> op, factory("accumulate", {}));
  TensorSpec spec = graph_.values[of].spec;
  if (graph_.values[of].kind == ValueKind::kParameter) spec.dtype = DType::kFloat32;
  const TensorSpec specs[2] = {spec, spec};
  OpSignature signature;
  ENGINE_RETURN_IF_ERROR(op->Infer(specs, &signature));
  bound->inputs = {ViewOfGradient(instruction.target), ViewOfGradient(instruction.source)};
  bound->outputs = {bound->inputs[0]};
  bound->op = op.get();
  bound->name = "sum of the gradients of '" + graph_.values[of].name + "'";
  add_ops_.push_back(std::move(op));
  return {};
}

void ModelMemory::BindNode(const Instruction& instruction, Bound* bound) {
  const Node& node = graph_.nodes[instruction.node];
  for (ValueId input : node.inputs) bound->inputs.push_back(ViewOfValue(input));
  for (ValueId output : node.outputs) bound->outputs.push_back(ViewOfValue(output));
  const bool backward = instruction.kind == InstructionKind::kBackward;
  if (backward) {
    for (GradientId gradient : instruction.output_grads)
      bound->output_grads.push_back(ViewOfGradient(gradient));
    for (size_t i = 0; i < instruction.input_grads.size(); ++i) {
      const GradientId gradient = instruction.input_grads[i];
      bound->input_grads.push_back(ViewOfGradient(gradient));
      if (gradient == kNone) continue;
      const StorageId place = plan_.of_gradient[gradient];
      if (place == plan_.of_value[node.inputs[i]]) {
        bound->gradient_in_place |= 1u << i;
        bound_[instruction.node].gradient_in_place |= 1u << i;  // its forward instruction
      }
      const Storage& storage = plan_.storages[place];
      if (storage.kind != StorageKind::kParameterGradient) continue;
      ENGINE_CHECK(program_.gradients[gradient].of == node.inputs[i], "shared with an activation");
      bound->parameter_grads |= 1u << i;
    }
  }
  const StorageId saved = plan_.of_saved[instruction.node];
  bound->call.saved = saved == kNone ? nullptr : AddressOf(saved);
  bound->call.node = static_cast<uint64_t>(instruction.node);
  bound->asks_for_replicas = node.signature.uses_replicas != 0;
  bound->op = node.op.get();
  bound->name = std::string(backward ? "backward" : "forward") + " of '" + node.name + "' (" +
                node.op_name + ")";
}

// Cuts the leading dimension of every batched tensor to the number of samples.
void ModelMemory::SetSamples(int64_t samples) {
  if (samples == samples_) return;
  samples_ = samples;
  const auto resize = [&](const TensorSpec& spec, TensorView* view) {
    if (spec.batched != 0) view->shape[0] = spec.shape[0] / graph_.max_samples * samples;
  };
  for (size_t k = 0; k < bound_.size(); ++k) {
    const Instruction& instruction = program_.instructions[k];
    Bound& bound = bound_[k];
    if (instruction.kind == InstructionKind::kAdd) {
      const TensorSpec& spec = graph_.values[program_.gradients[instruction.target].of].spec;
      for (TensorView& view : bound.inputs) resize(spec, &view);
      for (TensorView& view : bound.outputs) resize(spec, &view);
      continue;
    }
    const Node& node = graph_.nodes[instruction.node];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const TensorSpec& spec = graph_.values[node.inputs[i]].spec;
      resize(spec, &bound.inputs[i]);
      if (!bound.input_grads.empty()) resize(spec, &bound.input_grads[i]);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const TensorSpec& spec = graph_.values[node.outputs[i]].spec;
      resize(spec, &bound.outputs[i]);
      if (!bound.output_grads.empty()) resize(spec, &bound.output_grads[i]);
    }
  }
}

Status ModelMemory::SetScalars(const StepScalars& step) {
  if (accelerator_ == nullptr) return {};
  return device_.Copy(scalars(), &step, sizeof(step), stream_.get());
}

Status ModelMemory::KeepScalars(Stream* stream) {
  return device_.Copy(kept_scalars(), scalars(), sizeof(StepScalars), stream);
}

Status ModelMemory::SetBatch(const void* input, const void* target, int64_t samples,
                             std::span<const void* const> others, int64_t begin) {
  ENGINE_CHECK(samples >= 0 && samples <= graph_.max_samples, "%lld samples",
               static_cast<long long>(samples));
  SetSamples(samples);
  const auto copy = [&](ValueId id, const void* source) -> Status {
    const TensorSpec& spec = graph_.values[id].spec;
    const size_t of_sample =
        static_cast<size_t>(spec.shape.Count() / graph_.max_samples) * SizeOf(spec.dtype);
    const size_t bytes = of_sample * static_cast<size_t>(samples);
    if (bytes == 0) return {};
    const auto* const from = static_cast<const std::byte*>(source);
    return device_.Copy(AddressOf(plan_.of_value[id]),
                        from + of_sample * static_cast<size_t>(begin), bytes, stream_.get());
  };
  ENGINE_RETURN_IF_ERROR(copy(graph_.input, input));
  if (graph_.target != kNone) ENGINE_RETURN_IF_ERROR(copy(graph_.target, target));
  ENGINE_CHECK(others.size() == graph_.others.size(), "%zu further tensors", others.size());
  for (size_t i = 0; i < others.size(); ++i) {
    ENGINE_RETURN_IF_ERROR(copy(graph_.others[i], others[i]));
  }
  return {};
}

Status ModelMemory::Run(int32_t instruction, const CallContext& context) {
  Bound& bound = bound_[instruction];
  bound.call.step = context.step;
  bound.call.training = context.training ? 1 : 0;
  bound.call.gradient_in_place = context.training ? bound.gradient_in_place : 0;
  bound.call.first_sample = context.first_sample;
  bound.call.accumulate =
      program_.instructions[instruction].accumulate | (context.adds ? bound.parameter_grads : 0);
  bound.call.replicas = bound.asks_for_replicas ? context.replicas : nullptr;
  const bool backward = program_.instructions[instruction].kind == InstructionKind::kBackward;
  Status status = backward ? bound.op->Backward(bound.call) : bound.op->Forward(bound.call);
  return status.ok() ? status : status.WithContext("%s", bound.name.c_str());
}

Status ModelMemory::RunForward() {
  for (int32_t k = 0; k < program_.forward_count; ++k) {
    ENGINE_RETURN_IF_ERROR(Run(k, {}));
  }
  return {};
}

Status ModelMemory::InitializeParameters() {
  std::vector<float> values;
  for (size_t i = 0; i < graph_.parameters.size(); ++i) {
    const Parameter& parameter = graph_.parameters[i];
    values.resize(static_cast<size_t>(parameter.shape.Count()));
    Initialize(parameter, seed_, values);
    ENGINE_RETURN_IF_ERROR(device_.Copy(this->parameter(static_cast<int32_t>(i)).data,
                                        values.data(), values.size() * sizeof(float),
                                        stream_.get()));
    ENGINE_RETURN_IF_ERROR(stream_->Synchronize(kSetupTimeoutMs));
  }
  return RefreshCopies();
}

Status ModelMemory::RefreshCopies(int64_t offset, int64_t count) {
  if (copies_.data() == nullptr) return {};
  return accelerator_->math().Convert(parameters_.f32() + offset, DType::kFloat32, copy_at(offset),
                                      DType::kBFloat16, count, stream_.get());
}

Status ModelMemory::ReadFloats(const TensorView& from, float* to) const {
  const bool rounded = from.dtype == DType::kBFloat16;
  ENGINE_CHECK(rounded || from.dtype == DType::kFloat32, "%s elements", Name(from.dtype));
  std::vector<uint16_t> upper(rounded ? static_cast<size_t>(from.count()) : 0);
  void* const target = rounded ? static_cast<void*>(upper.data()) : to;
  ENGINE_RETURN_IF_ERROR(device_.Copy(target, from.data, from.size_bytes(), stream_.get()));
  ENGINE_RETURN_IF_ERROR(stream_->Synchronize(kSetupTimeoutMs));
  // A bfloat16 is the upper half of a float.
  for (size_t i = 0; i < upper.size(); ++i) {
    to[i] = std::bit_cast<float>(static_cast<uint32_t>(upper[i]) << 16);
  }
  return {};
}

Result<StepStatistics> ModelMemory::ReadStatistics() const {
  StepStatistics read;
  ENGINE_RETURN_IF_ERROR(device_.Copy(&read, statistics_.data(), sizeof(read), stream_.get()));
  ENGINE_RETURN_IF_ERROR(stream_->Synchronize(kSetupTimeoutMs));
  return read;
}

TensorView ModelMemory::parameter(int32_t index) const {
  return {.data = parameters_.f32() + layout_.offset[index],
          .shape = graph_.parameters[index].shape,
          .dtype = DType::kFloat32};
}

TensorView ModelMemory::logits() const {
  return ViewOfValue(graph_.logits);
}

Result<TensorView> ModelMemory::output(const std::string& name) const {
  for (const GraphOutput& output : graph_.outputs) {
    if (output.name == name) return ViewOfValue(output.value);
  }
  return Status::Error(StatusCode::kConfig, "the model has no output '%s'", name.c_str());
}

}  // namespace engine
