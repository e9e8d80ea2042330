// All ranks make the same updates of the same sums with the same states, so parameters stay equal
// bit for bit without ever being sent; what differs is only how the sum comes about.
#include "core/exec/reduced_updates.h"

#include <vector>

#include "core/exec/wire.h"

namespace engine::exec {

std::vector<UnitChain> ReducedChains(const FlatLayout& layout, const WireLayout* wire) {
  constexpr TransferStage kGather{TransferKind::kAllGather, "gather "};
  std::vector<UnitChain> chains;
  for (const UnitLayout& unit : layout.units) {
    if (wire != nullptr && wire->packed()) {
      chains.push_back({.gradients = {{TransferKind::kAllGather, "transfer "}}});
    } else if (unit.stages == UnitStages::kAllReduce) {
      chains.push_back({.gradients = {{TransferKind::kAllReduce, "transfer "}}});
    } else {
      chains.push_back({.gradients = {{TransferKind::kReduceScatter, "scatter "}, kGather}});
    }
  }
  return chains;
}

TensorView ReducedUpdates::state(int32_t parameter, int32_t index) const {
  return ViewOf(parameter, states_.At(index, graph::kNone, 0));
}

}  // namespace engine::exec
