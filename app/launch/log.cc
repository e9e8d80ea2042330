#include "app/launch/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>

#include "app/launch/deadlines.h"
#include "core/base/deadline.h"
#include "core/base/member.h"

namespace engine::launch {
std::string Printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto at = [text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : uint8_t{0};
  };
  std::string printable;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const unsigned char byte = at(i);
    // U+0080 to U+009F are controls too: the begin of a sequence for some terminals.
    const unsigned char second = byte == 0xc2 ? at(i + 1) : i > 0 && at(i - 1) == 0xc2 ? byte : 0;
    const bool control = second >= 0x80 && second < 0xa0;
    if ((byte >= 0x20 && byte != 0x7f && !control) || c == '\n' || c == '\t') {
      printable += c;
    } else {
      printable += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return printable;
}

// A pipe is opened once more: its flags would be those of all who share it.
void MakeErrorsNonBlocking() {
  struct stat info {};
  if (fstat(STDERR_FILENO, &info) != 0 || !S_ISFIFO(info.st_mode)) return;
  const int fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;  // a pipe of somebody else, or no /proc: it stays as it is
  dup2(fd, STDERR_FILENO);
  close(fd);
}

void ErrorLines::Write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  const std::string text =
      (dropped_ == 0 ? "" : fmt::format("engine: {} lines were dropped: nobody read\n", dropped_)) +
      std::string(line) + "\n";
  const base::TimePoint deadline = base::DeadlineIn(dropped_ == 0 ? kUnreadMs : 0);
  for (std::string_view rest = text; !rest.empty();) {
    ssize_t size = send(STDERR_FILENO, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0 && errno == ENOTSOCK) size = write(STDERR_FILENO, rest.data(), rest.size());
    if (size >= 0) {
      rest.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN && !base::Passed(deadline)) {
      pollfd entry{STDERR_FILENO, POLLOUT, 0};
      poll(&entry, 1, base::RemainingMs(deadline));
    } else if (errno != EINTR) {
      ++dropped_;
      return;
    }
  }
  dropped_ = 0;
}

base::LogSink MemberLog(const RankInfo& info, LogLevel level) {
  const bool alone = info.world_size == 1 && info.servers == 0;
  const std::string who = alone ? "" : "[" + base::MemberName(base::MemberOf(info)) + "] ";
  return [who, level, lines = std::make_shared<ErrorLines>()](LogLevel of_line,
                                                              std::string_view text) {
    if (of_line < level) return;
    const auto now =
        std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
    lines->Write(fmt::format("{:%H:%M:%S}.{:03} {} {}{}",
                             fmt::localtime(std::chrono::system_clock::to_time_t(now)),
                             now.time_since_epoch().count() % 1000,
                             "DIWE"[static_cast<int32_t>(of_line)], who, Printable(text)));
  };
}

}  // namespace engine::launch
