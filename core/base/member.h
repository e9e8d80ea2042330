// The members of a run: its ranks, and the servers that it may have beside them.
//
// A member is named by one number, in messages and in Status::rank(): r for rank r, ServerId(i)
// for server i, -1 for nobody.
#pragma once

#include <string>

#include "engine/host.h"
#include "engine/status.h"

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

// True for what a member says when it was stopped by the failure of another.
constexpr bool IsSecondary(StatusCode code) {
  return code == StatusCode::kAborted || code == StatusCode::kPeerLost;
}

}  // namespace engine::base
