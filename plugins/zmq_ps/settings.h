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

struct CommunicatorSettings {
  RendezvousSettings rendezvous;
  std::string_view update = "auto";  // the option of that name
  int32_t staleness = 1;             // kBounded
  int io_threads = 1;
  int reduce_threads = 1;
  FlowSettings flow;
  bool ordered = false;
  int64_t lost_after_ms = 1000;
  Heartbeat heartbeat;
};

// Null: servers add up only.
std::optional<ParameterTraits> UpdateOf(const CommunicatorSettings& settings,
                                        const RankInfo& ranks) noexcept;

// But for address and keys.
ServerSettings ServerSettingsOf(const CommunicatorSettings& settings, Host& host);

}  // namespace engine::zmq_ps
