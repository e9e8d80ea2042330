// Runs in which a hook says in which form gradients travel (HookStage::kWire).

#include <algorithm>

#include "core/exec/executor.h"

namespace engine {
namespace {

// Elements that are gathered at once for a checkpoint: every rank needs so many for each rank.
constexpr int64_t kGatheredAtOnce = 1 << 20;

}  // namespace

// Whether the hook that says how gradients travel, if there is one, goes with the rest.
Status Executor::CheckWire() {
  for (size_t i = 0; i < hook_traits_.size(); ++i) {
    if (hook_traits_[i].stage != HookStage::kWire) continue;
    if (wire_hook_ != kNone) {
      return Status::Error(StatusCode::kConfig,
                           "hooks '%s' and '%s' both say in which form gradients travel: choose "
                           "one of them",
                           options_.hook_names[wire_hook_].c_str(), options_.hook_names[i].c_str());
    }
    wire_hook_ = static_cast<int32_t>(i);
  }
  if (wire_hook_ == kNone) return {};
  const char* const name = options_.hook_names[wire_hook_].c_str();
  ENGINE_ASSIGN_OR_RETURN(WireFormat* const format,
                          WireFormatOf(*plugins_.hooks[wire_hook_], name));
  const WireTraits traits = format->wire_traits();
  const bool packed = traits.kind == WireKind::kPacked;
  if (packed && sharded_) {
    return Status::Error(StatusCode::kConfig,
                         "hook '%s' packs whole gradients, and train.shard_optimizer gives each "
                         "rank a part of each: set it to false or choose another hook",
                         name);
  }
  const DType sent = packed ? DType::kUint8 : traits.dtype;
  if ((communicator_traits_.dtypes & Bit(sent)) == 0) {
    return Status::Error(StatusCode::kConfig,
                         "hook '%s' sends %s, which communicator '%s' cannot: choose another of "
                         "the two",
                         name, Name(sent), options_.communicator_name.c_str());
  }
  if (options_.rank.world_size > 1 || options_.sends_alone) wire_format_ = format;
  return {};
}

Status Executor::PrepareWire() {
  if (wire_format_ == nullptr) return {};
  ENGINE_ASSIGN_OR_RETURN(WireLayout layout,
                          PlanWire(*wire_format_, wire_hook_, options_.hook_names[wire_hook_],
                                   memory_->layout(), options_.rank.world_size));
  ENGINE_ASSIGN_OR_RETURN(wire_, Wire::Create(*wire_format_, std::move(layout), *memory_,
                                              options_.rank, MemoryOfTransfers()));
  return {};
}

// In pieces, so that only rank 0 needs memory for all of it.
Status Executor::CollectWireStates() {
  ENGINE_CHECK(flushed(), "states of a hook while transfers are under way");
  if (wire_ == nullptr || wire_->state_count() == 0) return {};
  const bool keeps = options_.rank.rank == 0;
  const int32_t ranks = options_.rank.world_size;
  const int64_t total = memory_->layout().trainable_count;
  const int64_t piece = std::min(total, kGatheredAtOnce);
  collected_wire_.assign(keeps ? static_cast<size_t>(wire_->state_count() * ranks) : 0, {});
  for (std::vector<float>& state : collected_wire_) state.resize(static_cast<size_t>(total));
  auto scratch = DeviceBuffer::Create(
      memory_->device(), static_cast<size_t>(piece * ranks) * sizeof(float), memory_->stream());
  if (!scratch.ok()) return scratch.status().WithContext("memory to collect the state of a hook");
  for (int32_t s = 0; s < wire_->state_count(); ++s) {
    for (int64_t begin = 0; begin < total; begin += piece) {
      const int64_t count = std::min(piece, total - begin);
      ENGINE_RETURN_IF_ERROR(RunAlone({.kind = TransferKind::kAllGather,
                                       .send = wire_->state(s) + begin,
                                       .recv = scratch->data(),
                                       .count = count,
                                       .stream = memory_->stream()})
                                 .WithContext("collecting the state of a hook"));
      for (int32_t rank = 0; rank < ranks && keeps; ++rank) {
        float* const to = collected_wire_[static_cast<size_t>(s * ranks + rank)].data() + begin;
        ENGINE_RETURN_IF_ERROR(memory_->device().Copy(to, scratch->f32() + rank * count,
                                                      static_cast<size_t>(count) * sizeof(float),
                                                      memory_->stream()));
      }
      ENGINE_RETURN_IF_ERROR(memory_->stream()->Synchronize(options_.timeout_ms));
    }
  }
  return {};
}

TensorView Executor::wire_state(int32_t parameter, int32_t rank, int32_t index) const {
  if (memory_->program().of_parameter[parameter] == kNone || collected_wire_.empty()) return {};
  std::vector<float>& state =
      collected_wire_[static_cast<size_t>(index * options_.rank.world_size + rank)];
  return {.data = state.data() + memory_->layout().offset[parameter],
          .shape = memory_->graph().parameters[parameter].shape,
          .dtype = DType::kFloat32};
}

}  // namespace engine
