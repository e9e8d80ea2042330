// What travels, the same on all ranks:
//
//   kCast:   the elements of the arena, each of SizeOf(dtype) bytes, in the same order
//   kPacked: bucket = block of rank 0, block of rank 1, ...    block = packed span, ...
//            each packed span begins at a multiple of 16 bytes
//
// One arena for all of it. A packed bucket is gathered in place: each rank packs its own block, and
// all unpack the blocks in the order of ranks, the first as it is, so all come to the same bits.
#include "core/exec/wire.h"

#include <algorithm>

#include "core/exec/task_graph.h"
#include "core/exec/update_strategy.h"

namespace engine::exec {
namespace {

constexpr int64_t kSpanAlign = 16;
constexpr int64_t kBucketAlign = 64;  // a cache line

Status CheckTraits(const WireChoice& wire) {
  if (!wire.packed() && wire.traits.kind != WireKind::kCast) {
    return plugin::BadAnswer("hook", wire.name, "a wire format with an unknown kind");
  }
  if (SizeOf(wire.dtype()) == 0) {
    return plugin::BadAnswer("hook", wire.name, "a wire format with an unknown type of elements");
  }
  return CheckStates("hook", wire.name, wire.traits.state_names, wire.traits.state_count);
}

// Where the packed spans of a bucket lie in the block of a rank, and its size.
Result<int64_t> PlanBlock(const BucketLayout& bucket, WireLayout* wire) {
  int64_t block = 0;
  std::vector<int64_t>& begins = wire->span_begin.emplace_back();
  for (const BucketSpan& span : bucket.spans) {
    const int64_t bytes = wire->format->PackedBytes(span.count);
    if (bytes <= 0 || bytes > plugin::kMaxBytes) {
      return Status::Error(
          StatusCode::kPlugin, "hook '%s' packs %lld elements of a gradient into %lld bytes",
          wire->name.c_str(), static_cast<long long>(span.count), static_cast<long long>(bytes));
    }
    begins.push_back(block);
    block += RoundUp(bytes, kSpanAlign);
  }
  return RoundUp(block, kBucketAlign);
}

// Without memory of its own while all is well: this is on the step path.
Status Named(const WireCall& call, const Status& status) {
  return plugin::Answer(status).WithContext("'%.*s'", static_cast<int>(call.name.size()),
                                            call.name.data());
}

}  // namespace

Result<WireChoice> ChooseWire(plugin::PluginSet& plugins, const ExecutorOptions& options) {
  WireChoice choice;
  for (size_t i = 0; i < plugins.hooks.size(); ++i) {
    if (plugins.hooks[i]->traits().stage != HookStage::kWire) continue;
    if (choice.hook != graph::kNone) {
      return Status::Error(StatusCode::kConfig,
                           "hooks '%s' and '%s' both say in which form gradients travel: choose "
                           "one of them",
                           choice.name.c_str(), options.hook_names[i].c_str());
    }
    choice = {.hook = static_cast<int32_t>(i), .name = options.hook_names[i]};
  }
  if (choice.hook == graph::kNone) return choice;
  const char* const name = choice.name.c_str();
  auto* const format = Query<WireFormat>(*plugins.hooks[choice.hook]);
  if (format == nullptr) {
    return Status::Error(StatusCode::kPlugin,
                         "hook '%s' says that it changes how gradients travel, but has no '%s'",
                         name, std::string(WireFormat::kId).c_str());
  }
  choice.traits = format->wire_traits();
  ENGINE_RETURN_IF_ERROR(CheckTraits(choice));
  if (choice.packed() && options.shard_optimizer && options.rank.world_size > 1) {
    return Status::Error(StatusCode::kConfig,
                         "hook '%s' packs whole gradients, and train.shard_optimizer gives each "
                         "rank a part of each: set it to false or choose another hook",
                         name);
  }
  if ((plugins.communicator->traits().dtypes & Bit(choice.dtype())) == 0) {
    return Status::Error(StatusCode::kConfig,
                         "hook '%s' sends %s, which communicator '%s' cannot: choose another of "
                         "the two",
                         name, Name(choice.dtype()), options.communicator_name.c_str());
  }
  if (options.rank.world_size > 1 || options.sends_alone) choice.format = format;
  return choice;
}

// Follows from the layout and the options of the hook alone, so all ranks come to the same bytes
// without asking each other.
Result<WireLayout> PlanWire(const WireChoice& choice, const FlatLayout& layout,
                            int32_t world_size) {
  WireLayout wire{choice};
  const auto element = static_cast<int64_t>(SizeOf(wire.dtype()));
  for (const BucketLayout& bucket : layout.buckets) {
    wire.bucket_begin.push_back(wire.packed() ? wire.total_bytes : bucket.offset * element);
    int64_t bytes = bucket.count * element;
    if (wire.packed()) {
      ENGINE_ASSIGN_OR_RETURN(const int64_t block, PlanBlock(bucket, &wire));
      bytes = block * world_size;
    }
    wire.bucket_bytes.push_back(bytes);
    wire.total_bytes = wire.bucket_begin.back() + bytes;
  }
  return wire;
}

Result<std::unique_ptr<Wire>> Wire::Create(const WireChoice& choice, const ExecutorOptions& options,
                                           const ModelMemory& memory, SharedMemory* shared) {
  ENGINE_ASSIGN_OR_RETURN(WireLayout layout,
                          PlanWire(choice, memory.layout(), options.rank.world_size));
  std::unique_ptr<Wire> wire(new Wire(std::move(layout), memory, options));
  ENGINE_ASSIGN_OR_RETURN(
      wire->wire_,
      graph::DeviceBuffer::Create(memory.device(), static_cast<size_t>(wire->layout_.total_bytes),
                                  memory.stream(), "gradients as they travel", shared));
  ENGINE_ASSIGN_OR_RETURN(wire->states_,
                          Zeros(memory, wire->layout_.traits.state_count,
                                memory.layout().trainable_count, "the state of a hook"));
  return wire;
}

// On an accelerator every call is work of its own, so a cast gets all of a bucket at once.
size_t Wire::CallsFor(const Task& task) const {
  const bool at_once = memory_.accelerator() != nullptr && !layout_.packed();
  return at_once ? std::min<size_t>(1, task.spans.size()) : task.spans.size();
}

// Of span `i`, or of all from it to the last one. What travels as elements lies at the same offset as
// in the arena, so a part of a bucket needs no bookkeeping; what is packed in the block of `rank`.
WireCall Wire::CallOf(const Task& task, size_t i, int32_t rank, Stream* stream) const {
  const FlatLayout& layout = memory_.layout();
  const TaskSpan& span = task.spans[i];
  const TaskSpan& last = CallsFor(task) > 1 ? span : task.spans.back();
  const int64_t offset = layout.OffsetOf(span.parameter) + span.offset;
  WireCall call{.parameter = static_cast<uint32_t>(span.parameter),
                .name = memory_.graph().parameters[layout.parameters[span.parameter]].name,
                .gradient = memory_.gradients() + offset,
                .offset = span.offset,
                .count = layout.OffsetOf(last.parameter) + last.offset + last.count - offset,
                .stream = stream};
  for (int32_t s = 0; s < state_count(); ++s) call.states[s] = state(s) + offset;
  const uint32_t bucket = task.info.bucket;
  int64_t begin = offset * static_cast<int64_t>(SizeOf(layout_.dtype()));
  if (layout_.packed()) {
    const int64_t block = layout_.bucket_bytes[bucket] / options_.rank.world_size;
    begin = layout_.bucket_begin[bucket] + rank * block + layout_.span_begin[bucket][i];
  }
  call.wire = wire_.bytes() + begin;
  return call;
}

Status Wire::Pack(const Task& task, const float* scale, Stream* stream) {
  for (size_t i = 0; i < CallsFor(task); ++i) {
    WireCall call = CallOf(task, i, options_.rank.rank, stream);
    if (state_count() > 0) call.scale = scale;
    ENGINE_RETURN_IF_ERROR(Named(call, layout_.format->Pack(call)));
  }
  return {};
}

// What is packed is added up in the order of ranks, so that all come to the same bits.
Status Wire::Unpack(const Task& task, Stream* stream) {
  for (size_t i = 0; i < CallsFor(task); ++i) {
    for (int32_t rank = 0; rank < task.blocks; ++rank) {
      WireCall call = CallOf(task, i, rank, stream);
      call.accumulate = rank > 0 ? 1 : 0;
      Status status = layout_.format->Unpack(call);
      if (layout_.packed()) status = status.WithContext("what came from rank %d", rank);
      ENGINE_RETURN_IF_ERROR(Named(call, status));
    }
  }
  return {};
}

// In place: Pack has written what this rank gives, and nobody reads it again before the transfer ends.
void Wire::Describe(const Task& task, Transfer* transfer) const {
  const uint32_t bucket = task.info.bucket;
  transfer->dtype = layout_.dtype();
  transfer->count = layout_.bucket_bytes[bucket] / static_cast<int64_t>(SizeOf(transfer->dtype));
  MoveInPlace(wire_.bytes() + layout_.bucket_begin[bucket], options_.rank, transfer);
}

// Rank r has element r * count / n and those behind it, as MPI and NCCL have it for both kinds.
void MoveInPlace(void* elements, const RankInfo& rank, Transfer* transfer) {
  transfer->send = transfer->recv = elements;
  if (transfer->kind == TransferKind::kAllReduce) return;
  transfer->count /= rank.world_size;
  auto* const own = static_cast<std::byte*>(elements) +
                    rank.rank * transfer->count * static_cast<int64_t>(SizeOf(transfer->dtype));
  if (transfer->kind == TransferKind::kReduceScatter) {
    transfer->recv = own;
  } else {
    transfer->send = own;
  }
}

}  // namespace engine::exec
