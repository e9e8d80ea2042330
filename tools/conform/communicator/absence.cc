#include "tools/conform/communicator/absence.h"

#include <atomic>
#include <vector>

#include "engine/ext/accelerator.h"
#include "engine/ext/recorded_transfers.h"
#include "tools/conform/communicator/communicator_rig.h"

namespace engine::conform {

std::string NotOffered(int least, std::string_view id) {
  const std::vector<int> sizes = Sizes(least, least);
  if (sizes.empty()) return "it is not for one rank (-n 1)";
  std::atomic<bool> offered{false};
  World world(sizes.back());
  RunRanks(world.size(), [&](int rank) {
    if (world.rank(rank).Query(id, 0) != nullptr) offered = true;
  });
  return offered ? "" : "it does not offer " + std::string(id);
}

std::string NoRecordedTransfers() {
  const std::string why = NotOffered(1, RecordedTransfers::kId);
  Device* const device = DeviceOfRank(0);
  if (!why.empty() || (device != nullptr && Query<Accelerator>(*device) != nullptr)) return why;
  return "it needs --with ops that bring an accelerator";
}

std::string NothingFails() {
  const int size = OneSize(2, 2);
  if (size == 0) return "of one rank (-n 1) nothing fails between ranks";
  return World(size).moves_data() ? "" : "it moves nothing (traits().no_op)";
}

std::string NoProcesses() {
  if (IsLaunched()) return "a launcher's processes: it ends all of them when one dies";
  if (OneSize(2, 2) == 0) return "of one rank (-n 1) nothing fails between ranks";
  // In a child: a runtime that was used once may not survive a fork.
  return MovesDataInAChild() ? "" : "it moves nothing (traits().no_op)";
}

}  // namespace engine::conform
