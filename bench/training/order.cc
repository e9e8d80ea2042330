#include "bench/training/order.h"

namespace engine::bench {

std::vector<Turn> MakeOrder(int blocks, bool with_null) {
  std::vector<Turn> order;
  for (int block = 0; block < blocks; ++block) {
    for (int i = 0; i < 4; ++i) {
      order.push_back({i == 0 || i == 3 ? SideId::kA : SideId::kB, block, 2 * block + i / 2});
    }
    if (with_null) order.push_back({SideId::kNull, block});
  }
  return order;
}

std::vector<Pair> MakePairs(const std::vector<RunResult>& runs) {
  std::vector<const RunResult*> compared;
  for (const RunResult& run : runs) {
    if (run.side != SideId::kNull) compared.push_back(&run);
  }
  std::vector<Pair> pairs;
  for (size_t i = 0; i + 1 < compared.size(); i += 2) {
    const bool turned = compared[i]->side == SideId::kB;
    pairs.push_back({compared[turned ? i + 1 : i]->Times(), compared[turned ? i : i + 1]->Times()});
  }
  return pairs;
}

}  // namespace engine::bench
