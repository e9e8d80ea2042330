// An all-gather of short values through the store: each rank sets its own, the first one reads them
// all and publishes them together. So N ranks ask the store some 2 N times, and not N^2.
//
//   <topic>/<rank> := value                                      by each
//   <topic>/all    := for each rank: size ' ' value, or '-'      by the first; '-': has not come
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "clock.h"
#include "engine/host.h"
#include "failure.h"
#include "members.h"

namespace engine::nccl {

// By the order of members; nothing of those that have not come.
using Values = std::vector<std::optional<std::string>>;

// Host::StoreSet of text.
Status Set(Host& host, const std::string& key, std::string_view text);

// That of this rank.
Status SetValue(Host& host, const Members& members, const std::string& topic,
                std::string_view value);

// Those that are there by `deadline`. The first rank publishes them; the others wait for that a
// second longer, and without it have nothing of the first and empty values of the rest. `failure`
// ends the wait with its reason.
Result<Values> GatherValues(Host& host, const Members& members, const std::string& topic,
                            Clock::time_point deadline, const Failure& failure);

// kRendezvous blames the first that has not come.
Status CheckComplete(const Values& values, const Members& members, int64_t timeout_ms);

}  // namespace engine::nccl
