#include "app/launch/bind.h"

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace engine::launch {
namespace {

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;

Bitmap NewBitmap() {
  return {hwloc_bitmap_alloc(), &hwloc_bitmap_free};
}

std::string List(hwloc_const_bitmap_t bitmap) {
  char* text = nullptr;
  if (hwloc_bitmap_list_asprintf(&text, bitmap) < 0) return "?";
  const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);
  return owned.get();
}

Result<Topology> Load() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) {
    return Status::Error(StatusCode::kResourceExhausted, "--bind: no memory for hwloc");
  }
  Topology owned(topology, &hwloc_topology_destroy);
  if (hwloc_topology_load(topology) == 0) return owned;
  return Status::Error(StatusCode::kUnsupported,
                       "--bind: hwloc cannot tell what this host is made of: %s", strerror(errno));
}

}  // namespace

Result<std::string> BindRank(Binding binding, const RankInfo& info, bool joined) {
  ENGINE_ASSIGN_OR_RETURN(const Topology owned, Load());
  hwloc_topology_t topology = owned.get();
  const Bitmap mine = NewBitmap(), nodes = NewBitmap();
  if (hwloc_get_cpubind(topology, mine.get(), HWLOC_CPUBIND_THREAD) != 0) {
    return Status::Error(StatusCode::kUnsupported, "--bind: this system binds no thread: %s",
                         strerror(errno));
  }
  if (joined && !hwloc_bitmap_isincluded(hwloc_topology_get_allowed_cpuset(topology), mine.get())) {
    return Status::Error(StatusCode::kConfig,
                         "--bind: the launcher has bound this rank to processors %s already: drop "
                         "it, or have the launcher bind nothing (mpirun --bind-to none)",
                         List(mine.get()).c_str());
  }
  if (!joined) hwloc_topology_restrict(topology, mine.get(), 0);

  const bool cores = binding == Binding::kCore;
  const int depth = cores ? hwloc_get_type_or_below_depth(topology, HWLOC_OBJ_CORE)
                          : hwloc_get_type_depth(topology, HWLOC_OBJ_NUMANODE);
  const int count = static_cast<int>(hwloc_get_nbobjs_by_depth(topology, depth));
  const int ranks = std::max(info.local_world_size, 1);
  if (count == 0 || (cores && count < ranks)) {
    return Status::Error(StatusCode::kConfig,
                         "--bind core: the %d ranks on this host may use %d of its cores, and each "
                         "needs one: start fewer, or drop it",
                         ranks, count);
  }
  const int first = info.local_rank * count / ranks;
  const int end = std::max((info.local_rank + 1) * count / ranks, first + 1);
  hwloc_bitmap_zero(mine.get());
  for (int i = first; i < end; ++i) {
    hwloc_bitmap_or(mine.get(), mine.get(),
                    hwloc_get_obj_by_depth(topology, depth, static_cast<unsigned>(i))->cpuset);
  }
  if (hwloc_set_cpubind(topology, mine.get(), HWLOC_CPUBIND_THREAD) != 0) {
    return Status::Error(StatusCode::kUnsupported, "--bind: cannot bind to processors %s: %s",
                         List(mine.get()).c_str(), strerror(errno));
  }
  hwloc_cpuset_to_nodeset(topology, mine.get(), nodes.get());
  return "bound to processors " + List(mine.get()) + " (" + std::to_string(end - first) + " of " +
         std::to_string(count) + (cores ? " cores" : " nodes") + "), NUMA node " +
         List(nodes.get());
}

}  // namespace engine::launch
