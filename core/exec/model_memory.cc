// Arenas, each in the order of FlatLayout where it holds parameters or gradients:
//
//   parameters_   float32, all of the layout         copies_   bfloat16, where ops read those
//   gradients_    float32, what is trained: written by backward tasks, sent from here
//   activations_  values, their gradients and what ops save, placed by MemoryPlan
//   statistics_   the output of the loss op, then what the executor adds
#include "core/exec/model_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/exec/initialize.h"

namespace engine::exec {
namespace {

constexpr int64_t kSetupTimeoutMs = 60000;

// Where each tensor of a batch lies, in cache lines of its own, and the bytes of all.
size_t LayOutInputs(const graph::Graph& graph, std::vector<size_t>* offsets) {
  size_t bytes = 0;
  for (const graph::Value& value : graph.values) {
    offsets->push_back(bytes);
    if (value.kind != graph::ValueKind::kInput) continue;
    bytes += static_cast<size_t>(value.spec.shape.Count()) * SizeOf(value.spec.dtype);
    bytes = (bytes + 63) / 64 * 64;
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<ModelMemory>> ModelMemory::Create(graph::Graph graph, graph::Program program,
                                                         FlatLayout layout, Device& device,
                                                         const graph::OpFactory& factory,
                                                         uint64_t seed, SharedMemory* shared) {
  std::unique_ptr<ModelMemory> memory(
      new ModelMemory(std::move(graph), std::move(program), std::move(layout), device, seed));
  ENGINE_RETURN_IF_ERROR(memory->Allocate(shared));
  ENGINE_RETURN_IF_ERROR(memory->calls_.Bind(factory));
  memory->calls_.SetSamples(memory->graph_.max_samples);
  return memory;
}

ModelMemory::ModelMemory(graph::Graph graph, graph::Program program, FlatLayout layout,
                         Device& device, uint64_t seed)
    : graph_(std::move(graph)),
      program_(std::move(program)),
      layout_(std::move(layout)),
      plan_(graph::PlanMemory(graph_, program_)),
      device_(device),
      accelerator_(static_cast<Accelerator*>(device.Query(kAcceleratorId))),
      seed_(seed),
      calls_(*this) {}

Status ModelMemory::Allocate(SharedMemory* shared) {
  Stream* stream = nullptr;
  ENGINE_RETURN_IF_ERROR(device_.CreateStream(&stream));
  stream_.reset(stream);
  const auto keep = [](graph::DeviceBuffer* buffer, Result<graph::DeviceBuffer> made,
                       const char* what) -> Status {
    if (!made.ok()) return made.status().WithContext("memory for %s", what);
    *buffer = std::move(*made);
    return {};
  };
  const auto make = [&](graph::DeviceBuffer* buffer, size_t size_bytes, const char* what) {
    return keep(buffer, graph::DeviceBuffer::Create(device_, size_bytes, stream), what);
  };
  const auto make_sent = [&](graph::DeviceBuffer* buffer, int64_t count, DType dtype,
                             const char* what) {
    const size_t size_bytes = static_cast<size_t>(count) * SizeOf(dtype);
    if (shared == nullptr) return make(buffer, size_bytes, what);
    return keep(buffer, graph::DeviceBuffer::CreateShared(*shared, size_bytes), what);
  };
  ENGINE_RETURN_IF_ERROR(
      make_sent(&parameters_, layout_.total_count, DType::kFloat32, "parameters"));
  if (graph_.loss != graph::kNone) {
    ENGINE_RETURN_IF_ERROR(
        make_sent(&gradients_, layout_.trainable_count, DType::kFloat32, "gradients"));
  }
  const auto is_copied = [](const graph::Value& value) {
    return value.kind == graph::ValueKind::kParameter && value.spec.dtype != DType::kFloat32;
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
  ENGINE_RETURN_IF_ERROR(make(&inputs_, LayOutInputs(graph_, &input_offset_), "batches"));
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

// Of parameters what ops read: the rounded copy where their value is bfloat16. Gradients of
// parameters are float32 in any case.
void* ModelMemory::AddressOf(graph::StorageId id) const {
  const graph::Storage& storage = plan_.storages[id];
  switch (storage.kind) {
    case graph::StorageKind::kArena:
      return activations_.bytes() + storage.offset;
    case graph::StorageKind::kInput:
      return inputs_.bytes() + input_offset_[storage.index];
    case graph::StorageKind::kParameter: {
      const int64_t offset = layout_.offset[storage.index];
      const bool copied =
          graph_.values[graph_.parameters[storage.index].value].spec.dtype != DType::kFloat32;
      return copied ? copy_at(offset) : parameters_.f32() + offset;
    }
    case graph::StorageKind::kParameterGradient:
      return gradients_.f32() + layout_.offset[storage.index];
    case graph::StorageKind::kLoss:
      return statistics_.data();
    case graph::StorageKind::kSeed:
      return seed_gradient_.data();
  }
  return nullptr;
}

Status ModelMemory::SetScalars(const StepScalars& step) {
  if (accelerator_ == nullptr) return {};
  return device_.Copy(scalars(), &step, sizeof(step), stream_.get());
}

Status ModelMemory::KeepScalars(Stream* stream) {
  return device_.Copy(scalars(1), scalars(), sizeof(StepScalars), stream);
}

// Of a smaller batch the first samples of each tensor are used; what lies behind them is left over
// from before and never read.
Status ModelMemory::SetBatch(const void* input, const void* target, int64_t samples,
                             std::span<const void* const> others, int64_t begin) {
  ENGINE_CHECK(samples >= 0 && samples <= graph_.max_samples, "%lld samples",
               static_cast<long long>(samples));
  calls_.SetSamples(samples);
  const auto copy = [&](graph::ValueId id, const void* source) -> Status {
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
  if (graph_.target != graph::kNone) ENGINE_RETURN_IF_ERROR(copy(graph_.target, target));
  ENGINE_CHECK(others.size() == graph_.others.size(), "%zu further tensors", others.size());
  for (size_t i = 0; i < others.size(); ++i) {
    ENGINE_RETURN_IF_ERROR(copy(graph_.others[i], others[i]));
  }
  return {};
}

Status ModelMemory::Run(int32_t instruction, const CallContext& context) {
  return calls_.Run(instruction, context);
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
    const graph::Parameter& parameter = graph_.parameters[i];
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
  if (count < 0) count = layout_.total_count - offset;
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
  return calls_.ViewOfValue(graph_.logits);
}

Result<TensorView> ModelMemory::output(const std::string& name) const {
  for (const graph::GraphOutput& output : graph_.outputs) {
    if (output.name == name) return calls_.ViewOfValue(output.value);
  }
  return Status::Error(StatusCode::kConfig, "the model has no output '%s'", name.c_str());
}

}  // namespace engine::exec
