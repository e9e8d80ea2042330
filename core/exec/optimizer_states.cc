// Sharded, the parts of this rank lie one behind the other, so an offset in the arena of the layout
// is moved by what other ranks have before it: one number for each unit.
#include "core/exec/optimizer_states.h"

#include <utility>

namespace engine::exec {

Result<OptimizerStates> OptimizerStates::Create(const ModelMemory& memory,
                                                const OptimizerTraits& traits, bool sharded,
                                                const RankInfo& rank) {
  OptimizerStates states;
  states.sharded_ = sharded;
  int64_t elements = memory.layout().trainable_count;
  if (sharded) {
    elements = 0;
    for (const UnitLayout& unit : memory.layout().units) {
      const int64_t part = unit.count / rank.world_size;
      states.shift_.push_back(elements - (unit.offset + rank.rank * part));
      elements += part;
    }
  }
  for (int32_t i = 0; i < traits.state_count; ++i) {
    auto buffer =
        graph::DeviceBuffer::Create(memory.device(), elements * sizeof(float), memory.stream());
    if (!buffer.ok()) return buffer.status().WithContext("memory for the state of the optimizer");
    states.buffers_.push_back(std::move(*buffer));
  }
  return states;
}

size_t OptimizerStates::size_bytes() const {
  size_t sum = 0;
  for (const graph::DeviceBuffer& buffer : buffers_) sum += buffer.size_bytes();
  return sum;
}

}  // namespace engine::exec
