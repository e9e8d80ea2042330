// What the options of zmq_ps say.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/ext/parameter_server.h"
#include "engine/host.h"
#include "rendezvous.h"
#include "server.h"

namespace engine::zmq_ps {

// Who updates, and when.
enum class UpdateChoice {
  kAuto,     // sync where the run has servers of its own, else workers
  kWorkers,  // servers add up only
  kSync,
  kBounded,
  kAsync,
};

struct CommunicatorSettings {
  RendezvousSettings rendezvous;
  UpdateChoice update = UpdateChoice::kAuto;
  int32_t staleness = 1;  // kBounded
  int io_threads = 1;
  int reduce_threads = 1;
  uint64_t slice_bytes = 1 << 20;
  bool ordered = false;
  int buffer_bytes = 0;
  int64_t resend_ms = 500;
  int64_t lost_after_ms = 1000;
  Heartbeat heartbeat;
};

// One of the choices of the option `update`.
UpdateChoice UpdateChoiceOf(std::string_view name) noexcept;

// Null: servers add up only.
std::optional<ParameterTraits> UpdateOf(const CommunicatorSettings& settings,
                                        const RankInfo& ranks) noexcept;

// But for address and keys.
ServerSettings ServerSettingsOf(const CommunicatorSettings& settings, Host& host);
RendezvousSettings RendezvousSettingsOf(const CommunicatorSettings& settings,
                                        const RankInfo& ranks);

}  // namespace engine::zmq_ps
