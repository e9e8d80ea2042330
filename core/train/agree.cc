#include "core/train/agree.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "core/base/member.h"

namespace engine::train {
namespace {

// Of `value`, a text of lines, the first line in which `other` differs.
std::string Quoted(std::string_view value, std::string_view other) {
  constexpr size_t kMaxQuoted = 120;
  const auto same = std::ranges::mismatch(value, other).in1 - value.begin();
  const size_t begin = value.substr(0, static_cast<size_t>(same)).rfind('\n') + 1;
  const std::string line(value.substr(begin, value.find('\n', begin) - begin));
  return "'" + line.substr(0, kMaxQuoted) + (line.size() > kMaxQuoted ? "...'" : "'");
}

// store key := "agree/" what "/" (rank | "outcome")
//
// Each is written once in a run, by the rank that it names or by rank 0, so whoever waits for it
// cannot read what was said of something else, and a rank that comes late still finds it.
std::string Key(std::string_view what, const std::string& leaf) {
  return "agree/" + std::string(what) + "/" + leaf;
}

// The sentence of `member`, which has `value` where rank 0 has `first`; `who` names all like it.
Status Differs(const std::string& who, int member, std::string_view what, std::string_view value,
               std::string_view first) {
  return Status::Error(StatusCode::kConfig,
                       "%s: another configuration than rank 0 (%.*s): %s has %s and rank 0 has %s; "
                       "start all of them with the same",
                       who.c_str(), static_cast<int>(what.size()), what.data(),
                       base::MemberName(member).c_str(), Quoted(value, first).c_str(),
                       Quoted(first, value).c_str())
      .WithRank(member);
}

// On rank 0: *outcome is OK or the sentence that every rank returns.
Status Compare(base::RankContext& context, std::string_view what, std::string_view value,
               int64_t timeout_ms, Status* outcome) {
  std::string odd_ranks, odd_value;
  int first = 0;
  for (int rank = 1; rank < context.info.world_size; ++rank) {
    ENGINE_ASSIGN_OR_RETURN(const std::string other,
                            context.store.Get(Key(what, std::to_string(rank)), timeout_ms));
    if (other == value) continue;
    odd_ranks += (first > 0 ? ", " : "") + base::MemberName(rank);
    if (first > 0) continue;
    first = rank;
    odd_value = other;
  }
  if (first > 0) *outcome = Differs(odd_ranks, first, what, odd_value, value);
  return {};
}

}  // namespace

Status CheckSameAsRankZero(base::RankContext& context, std::string_view what,
                           std::string_view value, int64_t timeout_ms) {
  ENGINE_ASSIGN_OR_RETURN(const std::string first, context.store.Get(Key(what, "0"), timeout_ms));
  if (first == value) return {};
  const int member = base::MemberOf(context.info);
  return Differs(base::MemberName(member), member, what, value, first);
}

Status PublishAsRankZero(base::RankContext& context, std::string_view what,
                         std::string_view value) {
  return context.store.Set(Key(what, "0"), value);
}

// Every rank publishes its value; rank 0 compares and publishes the outcome as "RANK SENTENCE",
// empty when all agree.
Status CheckSameOnAllRanks(base::RankContext& context, std::string_view what,
                           std::string_view value, int64_t timeout_ms) {
  base::Store& store = context.store;
  if (context.info.incarnation > 0) return CheckSameAsRankZero(context, what, value, timeout_ms);
  Status outcome;
  if (context.info.rank == 0) {
    ENGINE_RETURN_IF_ERROR(PublishAsRankZero(context, what, value));
    ENGINE_RETURN_IF_ERROR(Compare(context, what, value, timeout_ms, &outcome));
    std::string text;
    if (!outcome.ok()) text = std::to_string(outcome.rank()) + " " + outcome.message();
    ENGINE_RETURN_IF_ERROR(store.Set(Key(what, "outcome"), text));
    return outcome;
  }
  ENGINE_RETURN_IF_ERROR(store.Set(Key(what, std::to_string(context.info.rank)), value));
  ENGINE_ASSIGN_OR_RETURN(std::string text, store.Get(Key(what, "outcome"), timeout_ms));
  size_t space = text.find(' ');
  if (space == std::string::npos) return {};
  return Status::Error(StatusCode::kConfig, "%s", text.c_str() + space + 1)
      .WithRank(std::atoi(text.c_str()));
}

}  // namespace engine::train
