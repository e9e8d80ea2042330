#include "app/launch/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/base/member.h"

namespace engine::launch {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return kLevels[static_cast<int32_t>(level)];
}

}  // namespace

std::string Printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string printable;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte >= 0x20 && byte != 0x7f) || c == '\n' || c == '\t') {
      printable += c;
    } else {
      printable += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return printable;
}

base::LogSink MemberLog(const RankInfo& info, LogLevel level) {
  const std::string name = base::MemberName(base::MemberOf(info));
  const bool alone = info.world_size == 1 && info.servers == 0;
  // In no registry of spdlog: the sink owns it.
  auto logger =
      std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %L " + (alone ? "" : "[" + name + "] ") + "%v");
  logger->set_level(ToSpdlog(level));
  return [logger](LogLevel of_line, std::string_view text) {
    logger->log(ToSpdlog(of_line), spdlog::string_view_t(Printable(text)));
  };
}

}  // namespace engine::launch
