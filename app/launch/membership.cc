#include "app/launch/membership.h"

#include <algorithm>

namespace engine::launch {

bool Membership::Has(Phase phase) const {
  return std::ranges::any_of(members_, [=](const Member& one) { return one.phase == phase; });
}

bool Membership::RanksAreGone() const {
  return std::all_of(members_.begin(), members_.begin() + shape_.world_size,
                     [](const Member& member) { return member.phase >= Phase::kLeft; });
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
  std::string names[2];
  int counts[2] = {};
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].phase != wanted) continue;
    const int member = shape_.At(static_cast<int>(i));
    const bool server = base::IsServer(member);
    names[server] += counts[server]++ > 0 ? ", " : "";
    names[server] += std::to_string(server ? ServerOfId(member) : member);
  }
  std::string text;
  constexpr const char* kKinds[] = {"rank", "server"};
  for (int kind : {0, 1}) {
    if (counts[kind] == 0) continue;
    text += text.empty() ? "" : " and ";
    text += std::string(kKinds[kind]) + (counts[kind] == 1 ? " " : "s ") + names[kind];
  }
  return text;
}

}  // namespace engine::launch
