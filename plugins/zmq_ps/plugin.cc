// zmq_ps: parameter servers over ZeroMQ.
#include "engine/plugin.h"

#include <exception>
#include <string>

#include "communicator.h"
#include "kit/options.h"
#include "server_member.h"

namespace engine::zmq_ps {
namespace {

Status Create(Host& host, const Options& options, Object** out) noexcept {
  try {
    const CommunicatorSettings settings{
        .rendezvous = {.servers = options.Int("servers"),
                       .interface = std::string(options.String("interface")),
                       .hostname = std::string(options.String("hostname")),
                       .encrypt = options.String("encrypt") == "always",
                       .timeout_ms = options.Int("rendezvous_timeout_ms")},
        .update = options.String("update"),
        .staleness = static_cast<int32_t>(options.Int("staleness")),
        .io_threads = static_cast<int>(options.Int("io_threads")),
        .reduce_threads = static_cast<int>(options.Int("reduce_threads")),
        .flow = {.slice_bytes = static_cast<uint64_t>(options.Int("slice_bytes")),
                 .buffer_bytes = static_cast<int>(options.Int("buffer_bytes"))},
        .ordered = options.String("match") == "position",
        .lost_after_ms = options.Int("lost_after_ms"),
        .heartbeat = {.interval_ms = static_cast<int>(options.Int("heartbeat_ms")),
                      .timeout_ms = static_cast<int>(options.Int("heartbeat_timeout_ms"))},
    };
    if (host.rank_info().is_server != 0) {
      ENGINE_ASSIGN_OR_RETURN(auto member, ServerMember::Create(host, settings));
      *out = member.release();
      return {};
    }
    ENGINE_ASSIGN_OR_RETURN(auto communicator, ZmqPsCommunicator::Create(host, settings));
    *out = communicator.release();
    return {};
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot start zmq_ps: %s", error.what());
  }
}

constexpr OptionSpec Number(FixedString<32> name, decltype(OptionSpec::default_value) preset,
                            double min, double max, FixedString<160> doc) {
  return {.name = name,
          .type = OptionType::kInt,
          .default_value = preset,
          .min = min,
          .max = max,
          .doc = doc};
}
constexpr OptionSpec Choice(FixedString<32> name, decltype(OptionSpec::default_value) preset,
                            FixedString<96> choices, FixedString<160> doc) {
  return {.name = name,
          .type = OptionType::kEnum,
          .default_value = preset,
          .choices = choices,
          .doc = doc};
}
constexpr double kDayMs = 86400000;

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "zmq_ps",
     .version = "1.0.0",
     .kind = PluginKind::kCommunicator,
     .doc = "parameter servers over ZeroMQ: collectives, and parameters that live at servers",
     .create = Create},
    NoOps(),
    std::array{
        Number("servers", "0", 0, 4096,
               "how many ranks host a server, from rank 0 on; 0: all, or none when the run has "
               "servers of its own"),
        Choice(
            "update", "auto", "auto|workers|sync|bounded|async",
            "who updates: workers, or servers (sync, bounded staleness, async); auto: servers of "
            "their own in sync, else the workers"),
        Number("staleness", "1", 0, 1000000,
               "update: bounded. For how many steps a rank may be ahead of another"),
        Number("slice_bytes", "524288", 4096, 1 << 28,
               "the most that is sent at once: what is urgent waits for a few of these"),
        Choice("match", "position", "position|key",
               "what makes transfers of several ranks one: their place in one order of all ranks, "
               "or their key, in any order"),
        Number("io_threads", "1", 1, 16, "ZeroMQ threads of the worker, and as many of the server"),
        Number("reduce_threads", "1", 1, 64, "threads of the server that add up"),
        Number("buffer_bytes", "1048576", 0, 1 << 28,
               "of the kernel, for each connection and direction; 0: as the kernel likes, which "
               "delays what is urgent"),
        Choice("encrypt", "network", "network|always",
               "what is encrypted and authenticated: what leaves this host, or all"),
        kit::StringOption("interface", "",
                          "network interface of the servers; empty: loopback when all ranks are on "
                          "one host, else the address of hostname"),
        kit::StringOption("hostname", "",
                          "own name or address of the servers; empty: the name of the host"),
        Number("rendezvous_timeout_ms", "30000", 1, kDayMs,
               "how long the ranks wait for each other at the start"),
        Number("lost_after_ms", "1000", 1, kDayMs,
               "how long a rank may be without a connection before it counts as lost"),
        Number("heartbeat_ms", "1000", 10, 3600000,
               "how often a connection is tried out when nothing comes by it"),
        Number("heartbeat_timeout_ms", "5000", 10, 3600000,
               "for how long the other side may leave that unanswered")});

}  // namespace engine::zmq_ps
