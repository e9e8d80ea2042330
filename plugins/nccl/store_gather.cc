#include "store_gather.h"

#include <algorithm>
#include <cstdlib>
#include <span>

namespace engine::nccl {
namespace {

constexpr int64_t kLookMs = 100;    // between two looks at whether the communicator has failed
constexpr int64_t kGraceMs = 1000;  // for what the first rank publishes at the deadline

// Nothing when `key` does not come in time. A store needs time to answer, also at the deadline.
Result<std::optional<std::string>> Await(Host& host, const std::string& key,
                                         Clock::time_point deadline, const Failure& failure) {
  for (;;) {
    if (failure.raised()) return failure.reason();
    const int64_t left_ms = MillisecondsUntil(deadline);
    bool exists = left_ms > 0;
    if (!exists) ENGINE_RETURN_IF_ERROR(host.StoreHas(key, &exists));
    if (!exists) return std::optional<std::string>();
    std::string text;
    const int64_t look_ms = left_ms > 0 ? std::min(left_ms, kLookMs) : kLookMs;
    const Status found = host.StoreGetString(key, look_ms, &text);
    if (found.ok()) return std::optional(std::move(text));
    if (found.code() != StatusCode::kTimeout) return found;
  }
}

std::string Encode(const Values& values) {
  std::string text;
  for (const auto& one : values) {
    if (one) text.append(std::to_string(one->size())).append(" ").append(*one);
    if (!one) text.append("-");
  }
  return text;
}

// False when it is not what Encode makes of as many.
bool Decode(const std::string& text, Values* values) {
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

}  // namespace

Status Set(Host& host, const std::string& key, std::string_view text) {
  return host.StoreSet(key, std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

Status SetValue(Host& host, const Members& members, const std::string& topic,
                std::string_view value) {
  return Set(host, topic + "/" + std::to_string(members.rank), value);
}

Result<Values> GatherValues(Host& host, const Members& members, const std::string& topic,
                            Clock::time_point deadline, const Failure& failure) {
  Values values(static_cast<size_t>(members.size()));
  const std::string all = topic + "/all";
  if (members.rank == 0) {
    for (size_t rank = 0; rank < values.size(); ++rank) {
      const std::string key = topic + "/" + std::to_string(rank);
      ENGINE_ASSIGN_OR_RETURN(values[rank], Await(host, key, deadline, failure));
    }
    ENGINE_RETURN_IF_ERROR(Set(host, all, Encode(values)));
    return values;
  }
  ENGINE_ASSIGN_OR_RETURN(
      const std::optional<std::string> text,
      Await(host, all, deadline + std::chrono::milliseconds(kGraceMs), failure));
  if (!text || !Decode(*text, &values)) {
    // The first rank may have begun later and still wait for another one: it is blamed last.
    bool others_came = true;
    for (size_t rank = 0; rank < values.size(); ++rank) {
      bool came = false;
      ENGINE_RETURN_IF_ERROR(host.StoreHas(topic + "/" + std::to_string(rank), &came));
      values[rank] = came ? std::optional<std::string>("") : std::nullopt;
      others_came = others_came && came;
    }
    if (others_came) values.front().reset();
  }
  return values;
}

Status CheckComplete(const Values& values, const Members& members, int64_t timeout_ms) {
  std::string list;
  int32_t first = -1;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (values[rank]) continue;
    if (list.empty()) first = members.names[rank];
    list.append(list.empty() ? "" : ", ").append(std::to_string(members.names[rank]));
  }
  if (first < 0) return {};
  return Status::Error(StatusCode::kRendezvous,
                       "rank%s %s of %d did not appear within %lld ms: check that every rank was "
                       "started and runs the same plugins",
                       list.find(',') == std::string::npos ? "" : "s", list.c_str(), members.size(),
                       static_cast<long long>(timeout_ms))
      .WithRank(first);
}

}  // namespace engine::nccl
