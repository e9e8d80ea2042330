#include "settings.h"

namespace engine::zmq_ps {

std::optional<ParameterTraits> UpdateOf(const CommunicatorSettings& settings,
                                        const RankInfo& ranks) noexcept {
  if (settings.update == "workers" || (settings.update == "auto" && ranks.servers == 0)) return {};
  if (settings.update == "async") return ParameterTraits{.mode = UpdateMode::kAsync};
  if (settings.update != "bounded") return ParameterTraits{.mode = UpdateMode::kSync};
  return ParameterTraits{.mode = UpdateMode::kBounded, .staleness = settings.staleness};
}

ServerSettings ServerSettingsOf(const CommunicatorSettings& settings, Host& host) {
  const RankInfo ranks = host.rank_info();
  return {.workers = static_cast<uint32_t>(ranks.world_size),
          .update = UpdateOf(settings, ranks),
          .reduce_threads = settings.reduce_threads,
          .io_threads = settings.io_threads,
          .flow = settings.flow,
          .lost_after_ms = settings.lost_after_ms,
          .heartbeat = settings.heartbeat,
          .log = [&host](std::string_view line) { host.Log(LogLevel::kWarning, line); }};
}

}  // namespace engine::zmq_ps
