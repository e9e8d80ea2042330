#include "app/launch/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdint>
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
