// How the ranks of a communicator meet in the store of their Host: an all-gather of short values.
//
//   <topic>/<rank> := value                                      by each
//   <topic>/all    := for each rank: size ' ' value, or '-'      by the first; '-': has not come
//
// The first rank reads all values and publishes them together. So N ranks ask the store some 2 N
// times, and not N^2. `topic` begins with the prefix of the communicator.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/host.h"
#include "engine/status.h"
#include "kit/deadline.h"
#include "kit/failure.h"

namespace engine::kit {

// The ranks of one communicator.
struct Members {
  // All ranks of the run.
  static Members All(const RankInfo& ranks, std::string prefix) {
    Members all{.rank = ranks.rank,
                .names = std::vector<int32_t>(static_cast<size_t>(ranks.world_size)),
                .prefix = std::move(prefix)};
    std::iota(all.names.begin(), all.names.end(), 0);
    return all;
  }

  int32_t size() const noexcept { return static_cast<int32_t>(names.size()); }

  int32_t rank = 0;            // of this one, among them
  std::vector<int32_t> names;  // of each, its rank in the run: what errors call it
  std::string prefix;          // of the keys of this communicator in the store
};

// By the order of members; nothing of those that have not come.
using Values = std::vector<std::optional<std::string>>;

// Host::StoreSet of text.
inline Status SetText(Host& host, const std::string& key, std::string_view text) noexcept {
  return host.StoreSet(key, std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

// The first number n for which the store has no "<n>/<suffix>": communicators of one run are
// counted from 0, on every rank in the order of creation.
inline Result<std::string> FreePrefix(Host& host, const std::string& suffix) {
  for (int number = 0;; ++number) {
    std::string prefix = std::to_string(number);
    uint32_t used = 1;
    ENGINE_RETURN_IF_ERROR(host.StoreHas(prefix + "/" + suffix, &used));
    if (!used) return prefix;
  }
}

// kRendezvous: the ranks called `names` are missing, and the first is to blame; OK if there is
// none.
inline Status NotAppeared(const std::vector<int32_t>& names, int32_t world_size,
                          int64_t timeout_ms) {
  if (names.empty()) return {};
  std::string list;
  for (const int32_t name : names)
    list.append(list.empty() ? "" : ", ").append(std::to_string(name));
  return Status::Error(StatusCode::kRendezvous,
                       "rank%s %s of %d did not appear within %lld ms: check that every rank was "
                       "started and runs "
                       "the same plugins",
                       names.size() == 1 ? "" : "s", list.c_str(), world_size,
                       static_cast<long long>(timeout_ms))
      .WithRank(names.front());
}

namespace internal {

constexpr int64_t kLookMs = 100;  // between two looks at whether the communicator has failed
constexpr int64_t kRendezvousGraceMs = 1000;  // for what the first rank publishes at the deadline

// Nothing when `key` does not come in time. A store needs time to answer, also at the deadline.
inline Result<std::optional<std::string>> AwaitKey(Host& host, const std::string& key,
                                                   Clock::time_point deadline,
                                                   const Failure* failure) {
  for (;;) {
    if (failure && failure->raised()) return failure->reason();
    const int64_t left_ms = MillisecondsUntil(deadline);
    uint32_t exists = left_ms > 0 ? 1 : 0;
    if (!exists) ENGINE_RETURN_IF_ERROR(host.StoreHas(key, &exists));
    if (!exists) return std::optional<std::string>();
    std::string text;
    const int64_t look_ms = left_ms > 0 && (!failure || left_ms < kLookMs) ? left_ms : kLookMs;
    const Status found = StoreGetString(host, key, look_ms, &text);
    if (found.ok()) return std::optional(std::move(text));
    if (found.code() != StatusCode::kTimeout) return found;
  }
}

inline std::string EncodeValues(const Values& values) {
  std::string text;
  for (const auto& one : values) {
    if (one) text.append(std::to_string(one->size())).append(" ").append(*one);
    if (!one) text.append("-");
  }
  return text;
}

// False when it is not what EncodeValues makes of as many.
inline bool DecodeValues(const std::string& text, Values* values) {
  size_t at = 0;
  for (auto& one : *values) {
    if (at < text.size() && text[at] == '-') {
      ++at;
      continue;
    }
    char* end = nullptr;
    const size_t size = std::strtoull(text.c_str() + at, &end, 10);
    at = static_cast<size_t>(end - text.c_str()) + 1;
    if (at > text.size() || size > text.size() - at) return false;
    one = text.substr(at, size);
    at += size;
  }
  return at == text.size();
}

}  // namespace internal

// Publishes the value of this rank.
inline Status SetValue(Host& host, const Members& members, const std::string& topic,
                       std::string_view value) {
  return SetText(host, topic + "/" + std::to_string(members.rank), value);
}

// Those that are there by `deadline`. The first rank publishes them; the others wait for that a
// second longer, and without it have nothing of the first and empty values of the rest. `failure`
// (or null) ends the wait with its reason.
inline Result<Values> GatherValues(Host& host, const Members& members, const std::string& topic,
                                   Clock::time_point deadline, const Failure* failure) {
  Values values(static_cast<size_t>(members.size()));
  const std::string all = topic + "/all";
  if (members.rank == 0) {
    for (size_t rank = 0; rank < values.size(); ++rank) {
      const std::string key = topic + "/" + std::to_string(rank);
      ENGINE_ASSIGN_OR_RETURN(values[rank], internal::AwaitKey(host, key, deadline, failure));
    }
    ENGINE_RETURN_IF_ERROR(SetText(host, all, internal::EncodeValues(values)));
    return values;
  }
  const auto grace = std::chrono::milliseconds(internal::kRendezvousGraceMs);
  ENGINE_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                          internal::AwaitKey(host, all, deadline + grace, failure));
  if (!text || !internal::DecodeValues(*text, &values)) {
    // The first rank may have begun later and still wait for another one: it is blamed last.
    bool others_came = true;
    for (size_t rank = 0; rank < values.size(); ++rank) {
      uint32_t came = 0;
      ENGINE_RETURN_IF_ERROR(host.StoreHas(topic + "/" + std::to_string(rank), &came));
      values[rank] = came ? std::optional<std::string>("") : std::nullopt;
      others_came = others_came && came;
    }
    if (others_came) values.front().reset();
  }
  return values;
}

// kRendezvous names those that have not come.
inline Status CheckComplete(const Values& values, const Members& members, int64_t timeout_ms) {
  std::vector<int32_t> missing;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (!values[rank]) missing.push_back(members.names[rank]);
  }
  return NotAppeared(missing, members.size(), timeout_ms);
}

// All of the above for all ranks of a run, at the creation of a communicator and by its deadline.
class Rendezvous {
 public:
  explicit Rendezvous(Host& host)
      : host_(host),
        ranks_(host.rank_info()),
        deadline_(DeadlineIn(ranks_.rendezvous_timeout_ms)) {}

  // Chooses the prefix. First.
  Status Begin() {
    ENGINE_ASSIGN_OR_RETURN(prefix_, FreePrefix(host_, "here/" + std::to_string(ranks_.rank)));
    return {};
  }
  // Collective, once: the values of all ranks, in rank order. kRendezvous names the ranks that are
  // missing.
  Result<std::vector<std::string>> Exchange(std::string_view value) {
    const Members members = Members::All(ranks_, prefix_);
    const std::string topic = prefix_ + "/here";
    ENGINE_RETURN_IF_ERROR(SetValue(host_, members, topic, value));
    ENGINE_ASSIGN_OR_RETURN(Values values, GatherValues(host_, members, topic, deadline_, nullptr));
    ENGINE_RETURN_IF_ERROR(CheckComplete(values, members, ranks_.rendezvous_timeout_ms));
    std::vector<std::string> all;
    for (auto& one : values) all.push_back(std::move(*one));
    return all;
  }

  // Of all keys of this communicator.
  const std::string& prefix() const noexcept { return prefix_; }
  Clock::time_point deadline() const noexcept { return deadline_; }

 private:
  Host& host_;
  const RankInfo ranks_;
  const Clock::time_point deadline_;
  std::string prefix_;
};

}  // namespace engine::kit
