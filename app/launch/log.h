// What a process says on standard error.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "core/base/rank_context.h"

namespace engine::launch {

// `text` for a terminal, which must not obey what came from files and peers: control bytes but tab
// and newline are written as \x1b.
std::string Printable(std::string_view text);
// The same, and newlines too; what is longer than kMaxLineBytes is cut.
std::string PrintableLine(std::string_view text);
inline constexpr size_t kMaxLineBytes = 2000;

// A reader that has stopped reading holds nothing up: where it leaves no room, a line waits for it
// for kUnreadMs and is then dropped, as are those after it until there is room. The next one says how
// many. Each line is one write, so lines of several processes do not mix.
class ErrorLines {
 public:
  void Write(std::string_view line);  // without a newline. [any-thread]

 private:
  std::mutex mutex_;
  int64_t dropped_ = 0;  // guarded by mutex_
};

// Makes writes to a full pipe fail rather than wait, for this process and its children alone. Call
// first of all.
void MakeErrorsNonBlocking();

// Writes lines like "14:03:59.120 W [rank 1] message" to standard error, from `level` up; "[server
// 0]" of a server, and without the member in a world of one.
base::LogSink MemberLog(const RankInfo& info, LogLevel level = LogLevel::kWarning);

}  // namespace engine::launch
