// Who is in a run: its ranks, and the servers that it may have beside them.
//
// A member is named by one number, in messages and in Status::rank(): r for rank r, ServerId(i)
// for server i, -1 for nobody.
#pragma once

#include <string>
#include <vector>

#include "core/base/store.h"
#include "engine/host.h"

namespace engine::base {

constexpr int kNobody = -1;

constexpr bool IsServer(int member) {
  return ServerOfId(member) >= 0;
}
constexpr int MemberOf(const RankInfo& info) {
  return info.is_server != 0 ? ServerId(info.rank) : info.rank;
}

// "rank 2", "server 1".
inline std::string MemberName(int member) {
  return IsServer(member) ? "server " + std::to_string(ServerOfId(member))
                          : "rank " + std::to_string(member);
}

}  // namespace engine::base

namespace engine::launch {

// The key of the store that the launcher sets when every rank has left, or is lost for good.
inline constexpr const char* kRanksLeftKey = "run/ranks_left";
// Whoever sets this one removes all keys that begin with its value.
inline constexpr const char* kRemoveKey = "run/remove";
// Once a rank has set this one, the run survives the loss of ranks but rank 0.
inline constexpr const char* kLossesAllowedKey = "run/losses_allowed";
// Once a rank has set this one, the run survives the loss of any rank: all others stop, and begin
// again when it has been replaced (RankContext::regroup). Until one has set the other.
inline constexpr const char* kRegroupKey = "run/regroup";
inline constexpr const char* kNoRegroupKey = "run/no_regroup";
// Set by the store in a run whose ranks have begun again.
inline constexpr const char* kRegroupedKey = "run/regrouped";
// What rank 0 sets to another value as long as it gets on with what the others wait for.
inline constexpr const char* kProgressKey = "run/progress";
// What the store answers of each member for itself: a numeric address of its host at which other hosts reach
// it, empty where no member is on another one. Nobody sets it.
inline constexpr const char* kAddressKey = "run/address";

// Whether a rank may have failed so because another is lost, which those that meet find out as a failure to
// meet.
constexpr bool MayFollowLoss(StatusCode code) {
  return base::IsSecondary(code) || code == StatusCode::kTimeout || code == StatusCode::kRendezvous;
}

struct RunShape {
  int world_size = 1;
  int servers = 0;
  bool one_host = true;
  std::vector<int> left = {};  // once ranks were lost for good: the others, by their numbers now

  int members() const { return world_size + servers; }
  bool Has(int member) const { return Index(member) >= 0; }
  // Ranks first, then servers; -1 for a number that names no member.
  int Index(int member) const {
    if (member >= 0) return member < world_size ? member : -1;
    const int server = ServerOfId(member);
    return server >= 0 && server < servers ? world_size + server : -1;
  }
  int At(int index) const { return index < world_size ? index : ServerId(index - world_size); }
};

// Of a member of a run that is on this host as a whole.
inline RankInfo LocalInfo(const RunShape& shape, int member) {
  const bool server = base::IsServer(member);
  const int index = server ? ServerOfId(member) : member;
  return {.rank = index,
          .world_size = shape.world_size,
          .local_rank = index,
          .local_world_size = shape.world_size,
          .servers = shape.servers,
          .is_server = server ? 1u : 0u,
          .one_host = shape.one_host ? 1u : 0u};
}

}  // namespace engine::launch
