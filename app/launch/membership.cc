#include "app/launch/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace engine::launch {

bool Membership::Has(Phase phase) const {
  return std::ranges::any_of(members_, [=](const Member& one) { return one.phase == phase; });
}

bool Membership::RanksAreGone() const {
  return std::all_of(members_.begin(), members_.begin() + shape_.world_size,
                     [](const Member& member) { return member.phase >= Phase::kLeft; });
}

std::vector<int> Membership::BeginAgain() {
  std::vector<int> left;
  for (int rank = 0; rank < shape_.world_size; ++rank) {
    if (std::exchange(members_[rank].ready, false)) left.push_back(rank);
  }
  return left.size() < members_.size() ? left : std::vector<int>();
}

std::vector<int> Membership::Missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < shape_.world_size; ++rank) {
    const bool waited_for = members_[rank].phase != Phase::kDropped;
    if (waited_for && !members_[rank].ready) missing.push_back(rank);
  }
  return missing;
}

bool Membership::Drop(int rank, int min_ranks) {
  const auto dropped = [](const Member& one) { return one.phase == Phase::kDropped; };
  const auto left = shape_.world_size - std::ranges::count_if(members_, dropped) - 1;
  if (min_ranks == 0 || left < min_ranks) return false;
  Set(rank, Phase::kDropped);
  return true;
}

Membership::Silent Membership::LongestSilent() {
  Silent longest;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].phase != Phase::kJoined) continue;
    const int64_t ms = members_[i].silence.Look();
    if (ms > longest.ms) longest = {shape_.At(static_cast<int>(i)), ms};
  }
  return longest;
}

std::string Membership::List(Phase wanted) const {
  std::vector<int> ranks, servers;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].phase != wanted) continue;
    const int member = shape_.At(static_cast<int>(i));
    base::IsServer(member) ? servers.push_back(ServerOfId(member)) : ranks.push_back(member);
  }
  const auto list = [](const char* kind, const std::vector<int>& numbers) {
    if (numbers.empty()) return std::string();
    return fmt::format("{}{} {}", kind, numbers.size() == 1 ? "" : "s", fmt::join(numbers, ", "));
  };
  const char* const both = !ranks.empty() && !servers.empty() ? " and " : "";
  return list("rank", ranks) + both + list("server", servers);
}

}  // namespace engine::launch
