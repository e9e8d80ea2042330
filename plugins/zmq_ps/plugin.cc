// zmq_ps: parameter servers over ZeroMQ.
#include <exception>
#include <string>

#include "communicator.h"
#include "kit/create.h"
#include "kit/options.h"
#include "server_member.h"

namespace engine::zmq_ps {
namespace {

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  try {
    const CommunicatorSettings settings{
        .servers = options.Int("servers"),
        .interface = std::string(options.String("interface")),
        .hostname = std::string(options.String("hostname")),
        .encrypt = options.String("encrypt") == "always",
        .update = std::string(options.String("update")),
        .staleness = static_cast<int32_t>(options.Int("staleness")),
        .reduce_threads = static_cast<int>(options.Int("reduce_threads")),
        .connection = {.flow = {.slice_bytes = static_cast<uint64_t>(options.Int("slice_bytes")),
                                .buffer_bytes = static_cast<int>(options.Int("buffer_bytes"))},
                       .heartbeat = {.interval_ms = static_cast<int>(options.Int("heartbeat_ms")),
                                     .timeout_ms =
                                         static_cast<int>(options.Int("heartbeat_timeout_ms"))},
                       .lost_after_ms = options.Int("lost_after_ms"),
                       .io_threads = static_cast<int>(options.Int("io_threads"))},
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

constexpr double kDayMs = 86400000;

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kCommunicator, "zmq_ps", "1.0.0",
    "parameter servers over ZeroMQ: collectives, and parameters that live at servers", Create,
    std::array{
        kit::IntOption(
            "servers", "0", 0, 4096,
            "how many ranks host a server, from rank 0 on; 0: all, or none when the run has "
            "servers of its own"),
        kit::EnumOption(
            "update", "auto", "auto|workers|sync|bounded|async",
            "who updates: workers, or servers (sync, bounded staleness, async); auto: servers of "
            "their own in sync, else the workers"),
        kit::IntOption("staleness", "1", 0, 1000000,
                       "update: bounded. For how many steps a rank may be ahead of another"),
        kit::IntOption("slice_bytes", "524288", 4096, 1 << 28,
                       "the most that is sent at once: what is urgent waits for a few of these"),
        kit::IntOption("io_threads", "1", 1, 16,
                       "ZeroMQ threads of the worker, and as many of the server"),
        kit::IntOption("reduce_threads", "1", 1, 64, "threads of the server that add up"),
        kit::IntOption(
            "buffer_bytes", "1048576", 0, 1 << 28,
            "of the kernel, for each connection and direction; 0: as the kernel likes, which "
            "delays what is urgent"),
        kit::EnumOption("encrypt", "network", "network|always",
                        "what is encrypted and authenticated: what leaves this host, or all"),
        kit::StringOption("interface", "",
                          "network interface of the servers; empty: loopback when all ranks are on "
                          "one host, else the address of hostname"),
        kit::StringOption(
            "hostname", "",
            "own name or address of the servers; empty: where the rendezvous sees the host"),
        kit::IntOption("lost_after_ms", "1000", 1, kDayMs,
                       "how long a rank may be without a connection before it counts as lost"),
        kit::IntOption("heartbeat_ms", "1000", 10, 3600000,
                       "how often a connection is tried out when nothing comes by it"),
        kit::IntOption("heartbeat_timeout_ms", "5000", 10, 3600000,
                       "for how long the other side may leave that unanswered")});

}  // namespace engine::zmq_ps
