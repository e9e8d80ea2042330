// The members of a run: its ranks, and the servers that it may have beside them.
//
// A member is named by one number, in messages and in Status::rank(): r for rank r, BlameServer(i)
// for server i, -1 for nobody.
#pragma once

#include <string>

#include "engine/host.h"

namespace engine {

constexpr int kNobody = -1;

// The key of the store that the launcher sets when every rank has left, or is lost for good.
inline constexpr const char* kRanksLeftKey = "run/ranks_left";

// Who is in a run.
struct RunShape {
  int world_size = 1;
  int servers = 0;
  bool one_host = true;

  int members() const { return world_size + servers; }
  bool Has(int member) const { return Index(member) >= 0; }
  // Ranks first, then servers; -1 for a number that names no member.
  int Index(int member) const {
    if (member >= 0) return member < world_size ? member : -1;
    const int server = BlamedServer(member);
    return server >= 0 && server < servers ? world_size + server : -1;
  }
  int At(int index) const { return index < world_size ? index : BlameServer(index - world_size); }
};

constexpr bool IsServer(int member) {
  return BlamedServer(member) >= 0;
}
constexpr int MemberOf(const RankInfo& info) {
  return info.is_server != 0 ? BlameServer(info.rank) : info.rank;
}

// "rank 2", "server 1".
inline std::string MemberName(int member) {
  return IsServer(member) ? "server " + std::to_string(BlamedServer(member))
                          : "rank " + std::to_string(member);
}

}  // namespace engine
