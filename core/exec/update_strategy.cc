// What all strategies have in common: gradients are sent from the arena that backward tasks write,
// in place, and what is collected for a checkpoint lies in the layout of that arena.
#include "core/exec/update_strategy.h"

#include <algorithm>
#include <string_view>

#include "core/exec/served_updates.h"
#include "core/exec/sharded_updates.h"
#include "core/exec/step_runner.h"
#include "core/exec/wire.h"

namespace engine::exec {
namespace {

bool IsIdentifier(std::string_view text) {
  return !text.empty() && text[0] >= 'a' &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string_view::npos;
}

}  // namespace

Status CheckStates(const char* kind, const std::string& name,
                   std::span<const FixedString<32>> state_names, int32_t count) {
  if (count < 0 || count > static_cast<int32_t>(state_names.size())) {
    return plugin::BadAnswer(kind, name, "too many states");
  }
  for (int32_t s = 0; s < count; ++s) {
    const std::string_view own = state_names[s].view();
    if (!IsIdentifier(own)) return plugin::BadAnswer(kind, name, "a state without a proper name");
    const auto same = [own](const auto& other) { return other.view() == own; };
    if (std::ranges::any_of(state_names.first(s), same)) {
      return plugin::BadAnswer(kind, name, "two states of one name");
    }
  }
  return {};
}

Result<OptimizerStates> OptimizerStates::Create(const ModelMemory& memory,
                                                const OptimizerTraits& traits, bool sharded,
                                                const RankInfo& rank) {
  // Every bucket has the same number of elements for each rank, so all ranks keep equally much.
  OptimizerStates states;
  int64_t elements = sharded ? 0 : memory.layout().trainable_count;
  for (const BucketLayout& bucket : memory.layout().buckets) {
    if (!sharded) break;
    const int64_t part = bucket.count / rank.world_size;
    states.shift_.push_back(elements - (bucket.offset + rank.rank * part));
    elements += part;
  }
  ENGINE_ASSIGN_OR_RETURN(
      states.buffers_, Zeros(memory, traits.state_count, elements, "the state of the optimizer"));
  return states;
}

std::unique_ptr<UpdateStrategy> UpdateStrategy::Choose(plugin::PluginSet& plugins,
                                                       const ExecutorOptions& options) {
  if (ParameterClient* const client = Query<ParameterClient>(*plugins.communicator)) {
    return std::make_unique<ServedUpdates>(plugins, options, *client);
  }
  if (options.shard_optimizer && options.rank.world_size > 1) {
    return std::make_unique<ShardedUpdates>(plugins, options);
  }
  return std::make_unique<ReducedUpdates>(plugins, options);
}

Status UpdateStrategy::Prepare(ModelMemory& memory) {
  memory_ = &memory;
  ENGINE_ASSIGN_OR_RETURN(states_,
                          OptimizerStates::Create(memory, optimizer_, in_parts_, options_.rank));
  return {};
}

// In place: nobody reads a gradient between its transfer and the tasks behind it.
void UpdateStrategy::Describe(const Task& task, uint64_t /*step*/, Transfer* transfer) const {
  const BucketLayout& bucket = memory_->layout().buckets[task.info.bucket];
  transfer->count = bucket.count;
  MoveInPlace(memory_->gradients() + bucket.offset, options_.rank, transfer);
}

// One transfer, with the padding, which is zero on every rank. Rounded copies follow, since ops read
// those.
Status UpdateStrategy::Broadcast(BlockingTransfers& transfers, int64_t from) {
  const int64_t count = memory_->layout().total_count - from;
  if (count == 0) return {};
  float* const parameters = memory_->parameters() + from;
  ENGINE_RETURN_IF_ERROR(transfers
                             .Run({.kind = TransferKind::kBroadcast,
                                   .send = parameters,
                                   .recv = parameters,
                                   .count = count,
                                   .stream = memory_->stream()})
                             .WithContext("broadcast of parameters"));
  return memory_->RefreshCopies(from);
}

Status UpdateStrategy::AllocateCollected(int64_t count) {
  ENGINE_ASSIGN_OR_RETURN(
      collected_, Zeros(*memory_, optimizer_.state_count, count, "collecting optimizer states"));
  return {};
}

// What was collected goes before what is here, which may be a part.
TensorView UpdateStrategy::state(int32_t parameter, int32_t index) const {
  float* arena = nullptr;
  if (states_.count() > 0 && !in_parts_) arena = states_.At(index, graph::kNone, 0);
  if (options_.rank.rank == 0 && !collected_.empty()) arena = collected_[index].f32();
  return ViewIn(*memory_, arena, parameter);
}

// What is packed has no sum on its way, so there is nothing to scatter: every rank gets all blocks.
std::vector<BucketChain> ReducedChains(const FlatLayout& layout, const WireLayout* wire) {
  constexpr TransferStage kGather{TransferKind::kAllGather, "gather "};
  std::vector<BucketChain> chains;
  for (const BucketLayout& bucket : layout.buckets) {
    if (wire != nullptr && wire->packed()) {
      chains.push_back({.gradients = {{TransferKind::kAllGather, "transfer "}}});
    } else if (bucket.stages == BucketStages::kAllReduce) {
      chains.push_back({.gradients = {{TransferKind::kAllReduce, "transfer "}}});
    } else {
      chains.push_back({.gradients = {{TransferKind::kReduceScatter, "scatter "}, kGather}});
    }
  }
  return chains;
}

}  // namespace engine::exec
