// Which processors a rank computes on.
#pragma once

#include <string>

#include "engine/host.h"
#include "engine/status.h"

namespace engine::launch {

enum class Binding { kCore, kNuma };

// Binds the calling thread, and all that it starts from now on, to its rank's share of the
// processors of this host: of kCore, whole cores, an equal number of neighbours for each rank; of
// kNuma, the processors of a NUMA node (or several), which ranks share when there are more of them. Memory then
// comes from the node of who touches it first.
//
// What is shared is what the thread may use now. `joined`: another launcher has started the ranks;
// kConfig if it has bound this one already. kConfig with fewer cores than ranks;
// kUnsupported where the system binds no thread. Returns what was done:
// "bound to processors 0-3 (4 of 8 cores), NUMA node 0".
Result<std::string> BindRank(Binding binding, const RankInfo& info, bool joined);

}  // namespace engine::launch
