#include "settings.h"

namespace engine::zmq_ps {

UpdateChoice UpdateChoiceOf(std::string_view name) noexcept {
  if (name == "workers") return UpdateChoice::kWorkers;
  if (name == "sync") return UpdateChoice::kSync;
  if (name == "bounded") return UpdateChoice::kBounded;
  if (name == "async") return UpdateChoice::kAsync;
  return UpdateChoice::kAuto;
}

std::optional<ParameterTraits> UpdateOf(const CommunicatorSettings& settings,
                                        const RankInfo& ranks) noexcept {
  switch (settings.update) {
    case UpdateChoice::kWorkers:
      return std::nullopt;
    case UpdateChoice::kBounded:
      return ParameterTraits{.mode = UpdateMode::kBounded, .staleness = settings.staleness};
    case UpdateChoice::kAsync:
      return ParameterTraits{.mode = UpdateMode::kAsync};
    case UpdateChoice::kAuto:
      if (ranks.servers == 0) return std::nullopt;
      break;
    case UpdateChoice::kSync:
      break;
  }
  return ParameterTraits{.mode = UpdateMode::kSync};
}

ServerSettings ServerSettingsOf(const CommunicatorSettings& settings, Host& host) {
  const RankInfo ranks = host.rank_info();
  return {.workers = static_cast<uint32_t>(ranks.world_size),
          .update = UpdateOf(settings, ranks),
          .reduce_threads = settings.reduce_threads,
          .io_threads = settings.io_threads,
          .slice_bytes = settings.slice_bytes,
          .buffer_bytes = settings.buffer_bytes,
          .resend_ms = settings.resend_ms,
          .lost_after_ms = settings.lost_after_ms,
          .heartbeat = settings.heartbeat,
          .log = [&host](std::string_view line) { host.Log(LogLevel::kWarning, line); }};
}

RendezvousSettings RendezvousSettingsOf(const CommunicatorSettings& settings,
                                        const RankInfo& ranks) {
  RendezvousSettings rendezvous = settings.rendezvous;
  const auto update = UpdateOf(settings, ranks);
  rendezvous.allows_losses = update && update->mode != UpdateMode::kSync;
  return rendezvous;
}

}  // namespace engine::zmq_ps
