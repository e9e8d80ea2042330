#include "app/launch/agree.h"

#include <algorithm>
#include <string>

#include "app/launch/member.h"

namespace engine::launch {
namespace {

// Of `value`, a text of lines, the first line in which `other` differs.
std::string Quoted(std::string_view value, std::string_view other) {
  constexpr size_t kMaxQuoted = 120;
  const auto same = std::ranges::mismatch(value, other).in1 - value.begin();
  const size_t begin = value.substr(0, static_cast<size_t>(same)).rfind('\n') + 1;
  const std::string line(value.substr(begin, value.find('\n', begin) - begin));
  return "'" + line.substr(0, kMaxQuoted) + (line.size() > kMaxQuoted ? "...'" : "'");
}

}  // namespace

Status CheckSameOnAllRanks(base::RankContext& context, std::string_view what,
                           std::string_view value, StatusCode code) {
  // Its value is that of rank 0. It is written once in a run, so whoever waits for it cannot read what
  // was said of something else, and a rank that comes late still finds it. Each rank compares for
  // itself: rank 0 writes one value, however many there are, and waits for nobody.
  const std::string key = "agree/" + std::string(what);
  const int member = base::MemberOf(context.info);
  if (member == 0) return context.store.Set(key, value);
  const Result<std::string> first = context.store.Get(key, context.info.rendezvous_timeout_ms);
  if (first.ok() && *first == value) return {};
  const int size = static_cast<int>(what.size());
  if (!first.ok()) {
    if (first.status().code() != StatusCode::kTimeout) return first.status();
    return Status::Error(StatusCode::kTimeout,
                         "rank 0 did not come to the comparison of '%.*s' within %lld ms", size,
                         what.data(), static_cast<long long>(context.info.rendezvous_timeout_ms))
        .WithRank(0);
  }
  const std::string name = base::MemberName(member);
  const bool of_plugins = code == StatusCode::kPlugin;
  return Status::Error(code, "%s than rank 0 (%.*s): %s has %s and rank 0 has %s; %s",
                       of_plugins ? "other answers of plugins" : "another configuration", size,
                       what.data(), name.c_str(), Quoted(value, *first).c_str(),
                       Quoted(*first, value).c_str(),
                       of_plugins ? "a plugin must say the same on all ranks"
                                  : "start all of them with the same")
      .WithRank(member);
}

// store keys := "run/ready/" rank | "run/ready"      the second, of rank 0, says that all of the first are
//                                                   there
Status MeetRanks(base::RankContext& context, int64_t timeout_ms) {
  const std::string ready = "run/ready";
  const auto key_of = [&](int32_t rank) { return ready + "/" + std::to_string(rank); };
  if (context.info.rank != 0) {
    ENGINE_RETURN_IF_ERROR(context.store.Set(key_of(context.info.rank), ""));
    return context.store.Get(ready, timeout_ms).status();
  }
  for (int32_t rank = 1; rank < context.info.world_size; ++rank) {
    ENGINE_RETURN_IF_ERROR(context.store.Get(key_of(rank), timeout_ms).status());
  }
  return context.store.Set(ready, "");
}

}  // namespace engine::launch
