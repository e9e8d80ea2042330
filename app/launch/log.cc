#include "app/launch/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <string>

#include "app/launch/member.h"

namespace engine {

std::shared_ptr<spdlog::logger> MakeRankLogger(int rank, int world_size,
                                               spdlog::level::level_enum level) {
  return MakeMemberLogger({.rank = rank, .world_size = world_size}, level);
}

std::shared_ptr<spdlog::logger> MakeMemberLogger(const RankInfo& info,
                                                 spdlog::level::level_enum level) {
  const std::string name = MemberName(MemberOf(info));
  const bool alone = info.world_size == 1 && info.servers == 0;
  auto logger =
      std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %L " + (alone ? "" : "[" + name + "] ") + "%v");
  logger->set_level(level);
  return logger;
}

}  // namespace engine
