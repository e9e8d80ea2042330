// Arenas, each in the order of FlatLayout where it holds parameters or gradients:
//
//   parameters_   float32, all of the layout         copies_   bfloat16, where ops read those
//   gradients_    float32, what is trained: written by backward tasks, sent from here
//   activations_  values, their gradients and what ops save, placed by MemoryPlan
//   statistics_   the output of the loss op, then what the executor adds; a copy of both
#include "core/exec/model_memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/base/hash.h"

namespace engine::exec {
namespace {

constexpr int64_t kSetupTimeoutMs = 60000;

// The upper half of a float, rounded to nearest, ties to even; a NaN stays one.
uint16_t ToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t nearest = bits + 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>((std::isnan(value) ? bits | 0x400000 : nearest) >> 16);
}

}  // namespace

Result<std::unique_ptr<ModelMemory>> ModelMemory::Create(graph::Graph graph, graph::Program program,
                                                         FlatLayout layout, Device& device,
                                                         const plugin::OpFactory& factory,
                                                         uint64_t seed, SharedMemory* shared,
                                                         base::CallWatch* watch) {
  std::unique_ptr<ModelMemory> memory(
      new ModelMemory(std::move(graph), std::move(program), std::move(layout), device, seed));
  ENGINE_RETURN_IF_ERROR(memory->Allocate(shared));
  ENGINE_RETURN_IF_ERROR(memory->calls_.Bind(factory, watch));
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
      accelerator_(Query<Accelerator>(device)),
      seed_(seed),
      calls_(*this) {}

// Offsets of a layout are multiples of 16 elements, so every tensor begins at a cache line in each
// arena of floats. Ranks that share memory allocate the same arenas in the same order.
Status ModelMemory::Allocate(SharedMemory* shared) {
  ENGINE_RETURN_IF_ERROR(graph::Make(device_, &stream_));
  const auto total = static_cast<size_t>(layout_.total_count);
  const auto trainable = static_cast<size_t>(layout_.trainable_count);
  const bool copies = std::ranges::any_of(
      graph_.parameters, [&](const auto& parameter) { return graph_.IsReadRounded(parameter); });
  const struct {
    graph::DeviceBuffer* buffer;
    size_t size_bytes;
    const char* what;
    SharedMemory* lent = nullptr;
  } arenas[] = {{&parameters_, total * sizeof(float), "parameters", shared},
                {&gradients_, trainable * sizeof(float), "gradients", shared},
                {&copies_, copies ? total * 2 : 0, "parameters in bfloat16", shared},
                {&scalars_, accelerator_ ? 2 * sizeof(StepScalars) : 0, "numbers of a step"},
                {&activations_, plan_.arena_bytes, "activations"},
                {&workspace_, plan_.workspace_bytes, "the workspace of ops"},
                {&inputs_, plan_.input_bytes, "batches"},
                {&statistics_, 2 * sizeof(StepStatistics), "statistics"},
                {&seed_gradient_, sizeof(StepStatistics), "statistics"}};
  for (const auto& [buffer, size_bytes, what, lent] : arenas) {
    ENGINE_ASSIGN_OR_RETURN(
        *buffer, graph::DeviceBuffer::Create(device_, size_bytes, stream_.get(), what, lent));
  }
  return SetLossScale(1);
}

Status ModelMemory::SetLossScale(float scale) {
  const float seed_gradient[3] = {scale, 0, 0};
  return device_.Copy(seed_gradient_.data(), seed_gradient, sizeof(seed_gradient), stream_.get());
}

// Of parameters what ops read: the rounded copy where their value is bfloat16. Gradients of
// parameters are float32 in any case.
void* ModelMemory::AddressOf(graph::StorageId id) const {
  const graph::Storage& storage = plan_.storages[id];
  switch (storage.kind) {
    case graph::StorageKind::kArena:
      return activations_.bytes() + storage.offset;
    case graph::StorageKind::kInput:
      return inputs_.bytes() + storage.offset;
    case graph::StorageKind::kParameter: {
      const int64_t offset = layout_.offset[storage.index];
      return graph_.IsReadRounded(graph_.parameters[storage.index]) ? copy_at(offset)
                                                                    : parameters_.f32() + offset;
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

// Steps are queued one behind the other: forward tasks of the next one may be queued before updates of
// this one, which therefore read a copy that KeepScalars has queued in their own stream.
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

Status ModelMemory::Run(int32_t begin, int32_t end, const CallContext& context) {
  for (int32_t k = begin; k < end; ++k) ENGINE_RETURN_IF_ERROR(calls_.Run(k, context));
  return {};
}

// Values of constants stay, for who loads all the others from a file.
Status ModelMemory::InitializeParameters() {
  for (size_t i = 0; i < graph_.parameters.size(); ++i) {
    graph::Parameter& parameter = graph_.parameters[i];
    const uint64_t key = base::HashOf(parameter.name, seed_);
    const auto count = static_cast<size_t>(parameter.shape.Count());
    for (size_t e = parameter.values.size(); e < count; ++e) {
      parameter.values.push_back(parameter.initial(key, e));
    }
    ENGINE_RETURN_IF_ERROR(device_.Copy(this->parameter(static_cast<int32_t>(i)).data,
                                        parameter.values.data(), count * sizeof(float),
                                        stream_.get()));
    ENGINE_RETURN_IF_ERROR(stream_->Synchronize(kSetupTimeoutMs));
    if (!parameter.constant()) parameter.values = {};
  }
  return RefreshCopies();
}

Status ModelMemory::RefreshCopies(int64_t offset) {
  if (copies_.data() == nullptr) return {};
  // Of host memory optimizers write theirs too; this is for what is loaded or broadcast.
  if (accelerator_ == nullptr) {
    std::transform(parameters_.f32() + offset, parameters_.f32() + layout_.total_count,
                   static_cast<uint16_t*>(copy_at(offset)), ToBFloat16);
    return {};
  }
  return accelerator_->math().Convert(parameters_.f32() + offset, DType::kFloat32, copy_at(offset),
                                      DType::kBFloat16, layout_.total_count - offset,
                                      stream_.get());
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

Result<std::vector<graph::DeviceBuffer>> Zeros(const ModelMemory& memory, int32_t buffers,
                                               int64_t elements, const char* what) {
  std::vector<graph::DeviceBuffer> made(static_cast<size_t>(buffers));
  for (graph::DeviceBuffer& buffer : made) {
    const size_t size_bytes = static_cast<size_t>(elements) * sizeof(float);
    ENGINE_ASSIGN_OR_RETURN(
        buffer, graph::DeviceBuffer::Create(memory.device(), size_bytes, memory.stream(), what));
  }
  return made;
}

TensorView ViewIn(const ModelMemory& memory, float* arena, int32_t parameter) {
  if (arena == nullptr || memory.program().of_parameter[parameter] == graph::kNone) return {};
  TensorView view = memory.parameter(parameter);
  view.data = arena + memory.layout().offset[parameter];
  return view;
}

}  // namespace engine::exec
