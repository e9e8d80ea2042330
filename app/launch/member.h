// Who is in a run, as its launcher sees it.
#pragma once

#include "core/base/member.h"

namespace engine {

// The key of the store that the launcher sets when every rank has left, or is lost for good.
inline constexpr const char* kRanksLeftKey = "run/ranks_left";

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

}  // namespace engine
