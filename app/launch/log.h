// The log of one member of a run.
#pragma once

#include <string>
#include <string_view>

#include "core/base/rank_context.h"

namespace engine::launch {

// `text` for a terminal, which must not obey what came from files and peers: control bytes but tab
// and newline are written as \x1b.
std::string Printable(std::string_view text);

// Writes lines like "14:03:59.120 W [rank 1] message" to stderr, from `level` up; "[server 0]" of a
// server, and without the member in a world of one. Each line is one write, so lines of several
// processes do not mix.
base::LogSink MemberLog(const RankInfo& info, LogLevel level = LogLevel::kWarning);

}  // namespace engine::launch
