// Which ranks share a host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/host.h"
#include "engine/status.h"
#include "kit/rendezvous.h"

namespace engine::hier {

struct Hosts {
  struct Place {
    size_t host = 0;   // by the first ranks of hosts
    size_t local = 0;  // among the ranks of the host, which ascend
    size_t peer =
        0;  // among the ranks with the same `local`, which ascend; of leaders (0) the host
  };

  const std::vector<int32_t>& local_ranks() const noexcept { return ranks[own.host]; }
  const std::vector<int32_t>& peers() const noexcept { return columns[own.local]; }
  size_t count() const noexcept { return ranks.size(); }
  size_t widest() const noexcept { return columns.size(); }  // the most ranks of a host

  std::vector<std::vector<int32_t>> ranks;    // by host
  std::vector<std::vector<int32_t>> columns;  // by `local`
  std::vector<Place> places;                  // by rank
  Place own;
  bool even = false;  // all hosts have as many ranks
};

// Collective, once. Consecutive ranks are a host of `ranks_per_host`; 0: those that the launcher and
// the kernel say to be one.
Result<Hosts> FindHosts(kit::Rendezvous& rendezvous, const RankInfo& rank, int64_t ranks_per_host);

}  // namespace engine::hier
