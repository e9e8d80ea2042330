// What travels, the same on all ranks:
//
//   kCast:   the elements of the arena, each of SizeOf(dtype) bytes, in the same order
//   kPacked: unit = block of rank 0, block of rank 1, ...    block = packed span, ...
//            each packed span begins at a multiple of 16 bytes
//
// One arena for all of it. A packed unit is gathered in place: each rank packs its own block, and
// all unpack the blocks in the order of ranks, the first as it is, so all come to the same bits.
#include "core/exec/wire.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/exec/task_graph.h"

namespace engine::exec {
namespace {

constexpr int64_t kSpanAlign = 16;
constexpr int64_t kUnitAlign = 64;  // a cache line
// Elements that are gathered at once for a checkpoint: every rank needs so many for each rank.
constexpr int64_t kGatheredAtOnce = 1 << 20;

int64_t RoundUp(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

bool IsIdentifier(std::string_view text) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  if (text.empty() || !fits(text[0])) return false;
  for (const char c : text) {
    if (!fits(c) && (c < '0' || c > '9')) return false;
  }
  return true;
}

Status CheckTraits(const WireTraits& traits, const std::string& name) {
  const auto refuse = [&](const char* what) {
    return Status::Error(StatusCode::kPlugin, "hook '%s' describes a wire format with %s",
                         name.c_str(), what);
  };
  if (traits.kind != WireKind::kCast && traits.kind != WireKind::kPacked) {
    return refuse("an unknown kind");
  }
  if (traits.kind == WireKind::kCast && SizeOf(traits.dtype) == 0) {
    return refuse("an unknown type of elements");
  }
  if (traits.state_count < 0 || traits.state_count > kMaxWireStates) {
    return refuse("too many states");
  }
  for (int32_t s = 0; s < traits.state_count; ++s) {
    if (!IsIdentifier(traits.state_names[s].view())) return refuse("a state without a proper name");
    if (s > 0 && traits.state_names[s].view() == traits.state_names[0].view()) {
      return refuse("two states of one name");
    }
  }
  return {};
}

}  // namespace

Result<WireFormat*> WireFormatOf(GradientHook& hook, const std::string& name) {
  auto* const format = static_cast<WireFormat*>(hook.Query(kWireFormatId));
  if (format == nullptr) {
    return Status::Error(StatusCode::kPlugin,
                         "hook '%s' says that it changes how gradients travel, but has no '%s'",
                         name.c_str(), std::string(kWireFormatId).c_str());
  }
  ENGINE_RETURN_IF_ERROR(CheckTraits(format->wire_traits(), name));
  return format;
}

Result<WireLayout> PlanWire(const WireFormat& format, int32_t hook, const std::string& name,
                            const FlatLayout& layout, int32_t world_size) {
  WireLayout wire{.hook = hook, .traits = format.wire_traits()};
  for (const UnitLayout& unit : layout.units) {
    if (!wire.packed()) {
      const auto element = static_cast<int64_t>(SizeOf(wire.traits.dtype));
      wire.unit_begin.push_back(unit.offset * element);
      wire.total_bytes = (unit.offset + unit.count) * element;
      continue;
    }
    int64_t block = 0;
    std::vector<int64_t>& begins = wire.span_begin.emplace_back();
    for (const UnitSpan& span : unit.spans) {
      const int64_t bytes = format.PackedBytes(span.count);
      if (bytes <= 0) {
        return Status::Error(
            StatusCode::kPlugin, "hook '%s' packs %lld elements of a gradient into %lld bytes",
            name.c_str(), static_cast<long long>(span.count), static_cast<long long>(bytes));
      }
      begins.push_back(block);
      block += RoundUp(bytes, kSpanAlign);
    }
    block = RoundUp(block, kUnitAlign);
    wire.unit_begin.push_back(wire.total_bytes);
    wire.block_bytes.push_back(block);
    wire.total_bytes += block * world_size;
  }
  return wire;
}

int64_t WireLayout::BytesOf(const FlatLayout& layout, int32_t unit, int32_t world_size) const {
  if (packed()) return block_bytes[unit] * world_size;
  return layout.units[unit].count * static_cast<int64_t>(SizeOf(traits.dtype));
}

Result<WireChoice> ChooseWire(plugin::PluginSet& plugins, const ExecutorOptions& options) {
  WireChoice choice;
  for (size_t i = 0; i < plugins.hooks.size(); ++i) {
    if (plugins.hooks[i]->traits().stage != HookStage::kWire) continue;
    if (choice.hook != graph::kNone) {
      return Status::Error(StatusCode::kConfig,
                           "hooks '%s' and '%s' both say in which form gradients travel: choose "
                           "one of them",
                           options.hook_names[choice.hook].c_str(), options.hook_names[i].c_str());
    }
    choice.hook = static_cast<int32_t>(i);
  }
  if (choice.hook == graph::kNone) return choice;
  const std::string& name = options.hook_names[choice.hook];
  ENGINE_ASSIGN_OR_RETURN(WireFormat* const format,
                          WireFormatOf(*plugins.hooks[choice.hook], name));
  const WireTraits traits = format->wire_traits();
  const bool packed = traits.kind == WireKind::kPacked;
  if (packed && options.shard_optimizer && options.rank.world_size > 1) {
    return Status::Error(StatusCode::kConfig,
                         "hook '%s' packs whole gradients, and train.shard_optimizer gives each "
                         "rank a part of each: set it to false or choose another hook",
                         name.c_str());
  }
  const DType sent = packed ? DType::kUint8 : traits.dtype;
  if ((plugins.communicator->traits().dtypes & Bit(sent)) == 0) {
    return Status::Error(StatusCode::kConfig,
                         "hook '%s' sends %s, which communicator '%s' cannot: choose another of "
                         "the two",
                         name.c_str(), Name(sent), options.communicator_name.c_str());
  }
  if (options.rank.world_size > 1 || options.sends_alone) choice.format = format;
  return choice;
}

Result<std::unique_ptr<Wire>> Wire::Create(const WireChoice& choice, const ExecutorOptions& options,
                                           const ModelMemory& memory, SharedMemory* shared) {
  ENGINE_ASSIGN_OR_RETURN(WireLayout layout,
                          PlanWire(*choice.format, choice.hook, options.hook_names[choice.hook],
                                   memory.layout(), options.rank.world_size));
  std::unique_ptr<Wire> wire(new Wire(*choice.format, std::move(layout), memory, options.rank));
  const auto size_bytes = static_cast<size_t>(wire->layout_.total_bytes);
  auto made = shared == nullptr
                  ? graph::DeviceBuffer::Create(memory.device(), size_bytes, memory.stream())
                  : graph::DeviceBuffer::CreateShared(*shared, size_bytes);
  if (!made.ok()) return made.status().WithContext("memory for gradients as they travel");
  wire->wire_ = std::move(*made);
  const auto state_bytes = static_cast<size_t>(memory.layout().trainable_count) * sizeof(float);
  for (int32_t s = 0; s < wire->layout_.traits.state_count; ++s) {
    auto state = graph::DeviceBuffer::Create(memory.device(), state_bytes, memory.stream());
    if (!state.ok()) return state.status().WithContext("memory for the state of a hook");
    wire->states_.push_back(std::move(*state));
  }
  return wire;
}

// On an accelerator every call is work of its own, so a cast gets all of a unit at once.
size_t Wire::CallsFor(const Task& task) const {
  const bool at_once = memory_.accelerator() != nullptr && !layout_.packed();
  return at_once ? std::min<size_t>(1, task.spans.size()) : task.spans.size();
}

WireCall Wire::CallOf(const Task& task, size_t i, Stream* stream) const {
  const FlatLayout& layout = memory_.layout();
  const auto begin_of = [&layout](const TaskSpan& span) {
    return layout.offset[layout.parameters[span.parameter]] + span.offset;
  };
  const TaskSpan& span = task.spans[i];
  const TaskSpan& last = CallsFor(task) > 1 ? span : task.spans.back();
  const int32_t index = layout.parameters[span.parameter];
  const int64_t offset = begin_of(span);
  WireCall call{.parameter = static_cast<uint32_t>(span.parameter),
                .name = memory_.graph().parameters[index].name,
                .gradient = memory_.gradients() + offset,
                .offset = span.offset,
                .count = begin_of(last) + last.count - offset,
                .stream = stream};
  for (int32_t s = 0; s < state_count(); ++s) call.states[s] = state(s) + offset;
  if (!layout_.packed()) {
    call.wire = wire_.bytes() + offset * static_cast<int64_t>(SizeOf(layout_.traits.dtype));
  }
  return call;
}

Status Wire::Pack(const Task& task, Stream* stream) {
  for (size_t i = 0; i < CallsFor(task); ++i) {
    WireCall call = CallOf(task, i, stream);
    if (layout_.packed()) {
      const uint32_t unit = task.info.unit;
      call.wire = wire_.bytes() + layout_.unit_begin[unit] +
                  rank_.rank * layout_.block_bytes[unit] + layout_.span_begin[unit][i];
    }
    const Status status = format_.Pack(call);
    if (!status.ok())
      return status.WithContext("'%.*s'", static_cast<int>(call.name.size()), call.name.data());
  }
  return {};
}

Status Wire::Unpack(const Task& task, Stream* stream) {
  for (size_t i = 0; i < CallsFor(task); ++i) {
    const WireCall call = CallOf(task, i, stream);
    const Status status = layout_.packed() ? UnpackBlocks(task, call, i) : format_.Unpack(call);
    if (!status.ok())
      return status.WithContext("'%.*s'", static_cast<int>(call.name.size()), call.name.data());
  }
  return {};
}

// In the order of ranks, so that all come to the same bits.
Status Wire::UnpackBlocks(const Task& task, WireCall call, size_t span) {
  const uint32_t unit = task.info.unit;
  std::byte* const first =
      wire_.bytes() + layout_.unit_begin[unit] + layout_.span_begin[unit][span];
  for (int32_t rank = 0; rank < rank_.world_size; ++rank) {
    call.wire = first + rank * layout_.block_bytes[unit];
    call.accumulate = rank > 0 ? 1 : 0;
    const Status status = format_.Unpack(call);
    if (!status.ok()) return status.WithContext("what came from rank %d", rank);
  }
  return {};
}

void Wire::Describe(const Task& task, Transfer* transfer) const {
  const uint32_t unit = task.info.unit;
  std::byte* const whole = wire_.bytes() + layout_.unit_begin[unit];
  transfer->send = transfer->recv = whole;
  if (layout_.packed()) {
    transfer->dtype = DType::kUint8;
    transfer->count = layout_.block_bytes[unit];
    transfer->send = whole + rank_.rank * transfer->count;
    return;
  }
  transfer->dtype = layout_.traits.dtype;
  transfer->count = memory_.layout().units[unit].count;
  CutForRank(rank_, transfer);
}

// In pieces, so that only rank 0 needs memory for all of it.
Status Wire::CollectStates(BlockingTransfers& transfers, int64_t timeout_ms) {
  if (state_count() == 0) return {};
  const bool keeps = rank_.rank == 0;
  const int32_t ranks = rank_.world_size;
  const int64_t total = memory_.layout().trainable_count;
  const int64_t piece = std::min(total, kGatheredAtOnce);
  collected_.assign(keeps ? static_cast<size_t>(state_count() * ranks) : 0,
                    std::vector<float>(static_cast<size_t>(total)));
  auto scratch = graph::DeviceBuffer::Create(
      memory_.device(), static_cast<size_t>(piece * ranks) * sizeof(float), memory_.stream());
  if (!scratch.ok()) return scratch.status().WithContext("memory to collect the state of a hook");
  for (int32_t s = 0; s < state_count(); ++s) {
    for (int64_t begin = 0; begin < total; begin += piece) {
      const int64_t count = std::min(piece, total - begin);
      ENGINE_RETURN_IF_ERROR(transfers
                                 .Run({.kind = TransferKind::kAllGather,
                                       .send = state(s) + begin,
                                       .recv = scratch->data(),
                                       .count = count,
                                       .stream = memory_.stream()})
                                 .WithContext("collecting the state of a hook"));
      for (int32_t rank = 0; rank < ranks && keeps; ++rank) {
        float* const to = collected_[static_cast<size_t>(s * ranks + rank)].data() + begin;
        ENGINE_RETURN_IF_ERROR(memory_.device().Copy(to, scratch->f32() + rank * count,
                                                     static_cast<size_t>(count) * sizeof(float),
                                                     memory_.stream()));
      }
      ENGINE_RETURN_IF_ERROR(memory_.stream()->Synchronize(timeout_ms));
    }
  }
  return {};
}

TensorView Wire::state_of(int32_t parameter, int32_t rank, int32_t index) const {
  if (memory_.program().of_parameter[parameter] == graph::kNone || collected_.empty()) return {};
  std::vector<float>& state = collected_[static_cast<size_t>(index * rank_.world_size + rank)];
  return {.data = state.data() + memory_.layout().offset[parameter],
          .shape = memory_.graph().parameters[parameter].shape,
          .dtype = DType::kFloat32};
}

void CutForRank(const RankInfo& rank, Transfer* transfer) {
  if (transfer->kind == TransferKind::kAllReduce) return;
  transfer->count /= rank.world_size;
  auto* const own = static_cast<std::byte*>(transfer->recv) +
                    rank.rank * transfer->count * static_cast<int64_t>(SizeOf(transfer->dtype));
  if (transfer->kind == TransferKind::kReduceScatter) {
    transfer->recv = own;
  } else {
    transfer->send = own;
  }
}

}  // namespace engine::exec
