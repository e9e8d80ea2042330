#include "app/launch/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <memory>

#include "app/launch/deadlines.h"
#include "app/launch/member.h"
#include "core/base/deadline.h"

namespace engine::launch {
namespace {

class ErrorSink final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    lines_.Write({line.data(), line.size() - 1});  // without the newline
  }
  void flush_() override {}

  ErrorLines lines_;
};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return kLevels[std::min<size_t>(static_cast<uint32_t>(level), std::size(kLevels) - 1)];
}

// Control bytes but those in `kept` as \x1b.
std::string Escape(std::string_view text, std::string_view kept) {
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
    } else if ((byte < 0x20 && kept.find(text[i]) == kept.npos) || byte == 0x7f) {
      hide(byte);
    } else {
      printable += text[i];
    }
  }
  return printable;
}

}  // namespace

std::string Printable(std::string_view text) {
  return Escape(text, "\n\t");
}

std::string PrintableLine(std::string_view text) {
  if (text.size() <= kMaxLineBytes) return Escape(text, "\t");
  return Escape(text.substr(0, kMaxLineBytes), "\t") + "...";
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
  const std::string name = base::MemberName(base::MemberOf(info));
  const bool alone = info.world_size == 1 && info.servers == 0;
  // In no registry of spdlog: what is returned owns it.
  auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<ErrorSink>());
  logger->set_pattern("%H:%M:%S.%e %L " + (alone ? "" : "[" + name + "] ") + "%v");
  logger->set_level(ToSpdlog(level));
  return [logger](LogLevel of_line, std::string_view text) {
    logger->log(ToSpdlog(of_line), spdlog::string_view_t(PrintableLine(text)));
  };
}

}  // namespace engine::launch
