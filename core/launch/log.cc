#include "core/launch/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <string>

namespace engine {

std::shared_ptr<spdlog::logger> MakeRankLogger(int rank, int world_size,
                                               spdlog::level::level_enum level) {
  std::string prefix = world_size > 1 ? "[rank " + std::to_string(rank) + "] " : "";
  auto logger = std::make_shared<spdlog::logger>("rank" + std::to_string(rank),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %L " + prefix + "%v");
  logger->set_level(level);
  return logger;
}

}  // namespace engine
