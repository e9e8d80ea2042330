// How every rank comes to know what each has to say, through the store: each writes its own words,
// the first one reads them all and publishes them together. So N ranks ask the store some 2 N
// times, and not N^2.
//
//   <topic>/<rank> := words                                      by each
//   <topic>/all    := for each rank: size ' ' words, or '-'      by the first; '-': has not come
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
using Words = std::vector<std::optional<std::string>>;

// Host::StoreSet of text.
Status Set(Host& host, const std::string& key, std::string_view text);

// The words of this rank.
Status Say(Host& host, const Members& members, const std::string& topic, std::string_view words);

// What all have said by `deadline`; the first rank publishes it, the others wait for that a second
// longer, and without it they know of all but the first that they may be there (empty words).
// `failure` ends the wait with its reason.
Result<Words> HearAll(Host& host, const Members& members, const std::string& topic,
                      Clock::time_point deadline, const Failure& failure);

// kRendezvous blames the first that has not come.
Status CheckThatAllCame(const Words& words, const Members& members, int64_t timeout_ms);

}  // namespace engine::nccl
