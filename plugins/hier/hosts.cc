#include "hosts.h"

#include <algorithm>
#include <string>

#include "kit/inner_communicator.h"

namespace engine::hier {

Result<Hosts> FindHosts(kit::Rendezvous& rendezvous, const RankInfo& rank, int64_t ranks_per_host) {
  const std::string name =
      ranks_per_host > 0 ? std::to_string(rank.rank / ranks_per_host) : kit::HostName(rank);
  ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> names, rendezvous.Exchange(name));
  Hosts hosts;
  std::vector<std::string> met;
  for (size_t r = 0; r < names.size(); ++r) {
    Hosts::Place place;
    place.host = static_cast<size_t>(std::find(met.begin(), met.end(), names[r]) - met.begin());
    if (place.host == met.size()) {
      met.push_back(names[r]);
      hosts.ranks.emplace_back();
    }
    place.local = hosts.ranks[place.host].size();
    hosts.ranks[place.host].push_back(static_cast<int32_t>(r));
    if (place.local == hosts.columns.size()) hosts.columns.emplace_back();
    place.peer = hosts.columns[place.local].size();
    hosts.columns[place.local].push_back(static_cast<int32_t>(r));
    hosts.places.push_back(place);
  }
  hosts.own = hosts.places[static_cast<size_t>(rank.rank)];
  hosts.even = hosts.widest() * hosts.count() == names.size();
  return hosts;
}

}  // namespace engine::hier
