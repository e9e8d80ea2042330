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
  std::string printable;
  const auto hide = [&](unsigned char byte) { printable += fmt::format("\\x{:02x}", byte); };
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {
      // U+0080 to U+009F are controls too: the begin of a sequence for some terminals.
      hide(byte);
      hide(next);
      ++i;
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      hide(byte);
    } else {
      printable += text[i];
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
