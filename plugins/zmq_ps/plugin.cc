// zmq_ps: parameter servers over ZeroMQ.
#include "engine/plugin.h"

#include <exception>

#include "communicator.h"
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
        .update = UpdateChoiceOf(options.String("update")),
        .staleness = static_cast<int32_t>(options.Int("staleness")),
        .io_threads = static_cast<int>(options.Int("io_threads")),
        .reduce_threads = static_cast<int>(options.Int("reduce_threads")),
        .slice_bytes = static_cast<uint64_t>(options.Int("slice_bytes")),
        .ordered = options.String("match") == "position",
        .buffer_bytes = static_cast<int>(options.Int("buffer_bytes")),
        .resend_ms = options.Int("resend_ms"),
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

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "zmq_ps",
     .version = "1.0.0",
     .kind = PluginKind::kCommunicator,
     .doc = "parameter servers over ZeroMQ: collectives, and parameters that live at servers",
     .create = Create},
    NoOps(),
    std::array{
        OptionSpec{.name = "servers",
                   .type = OptionType::kInt,
                   .default_value = "0",
                   .min = 0,
                   .max = 4096,
                   .doc =
                       "how many ranks host a server, from rank 0 on; 0: all, or none when the run "
                       "has servers of its own"},
        OptionSpec{.name = "update",
                   .type = OptionType::kEnum,
                   .default_value = "auto",
                   .choices = "auto|workers|sync|bounded|async",
                   .doc =
                       "who updates: workers, or servers (sync, bounded staleness, async); auto: "
                       "servers of their own in sync, else the workers"},
        OptionSpec{.name = "staleness",
                   .type = OptionType::kInt,
                   .default_value = "1",
                   .min = 0,
                   .max = 1000000,
                   .doc = "update: bounded. For how many steps a rank may be ahead of another"},
        OptionSpec{.name = "slice_bytes",
                   .type = OptionType::kInt,
                   .default_value = "524288",
                   .min = 4096,
                   .max = 1 << 28,
                   .doc = "the most that is sent at once: what is urgent waits for a few of these"},
        OptionSpec{.name = "match",
                   .type = OptionType::kEnum,
                   .default_value = "position",
                   .choices = "position|key",
                   .doc = "what makes transfers of several ranks one: their place in one order of "
                          "all ranks, or their key, in any order"},
        OptionSpec{.name = "io_threads",
                   .type = OptionType::kInt,
                   .default_value = "1",
                   .min = 1,
                   .max = 16,
                   .doc = "ZeroMQ threads of the worker, and as many of the server"},
        OptionSpec{.name = "reduce_threads",
                   .type = OptionType::kInt,
                   .default_value = "1",
                   .min = 1,
                   .max = 64,
                   .doc = "threads of the server that add up"},
        OptionSpec{.name = "buffer_bytes",
                   .type = OptionType::kInt,
                   .default_value = "1048576",
                   .min = 0,
                   .max = 1 << 28,
                   .doc = "of the kernel, for each connection and direction; 0: as the kernel "
                          "likes, which delays what is urgent"},
        OptionSpec{.name = "encrypt",
                   .type = OptionType::kEnum,
                   .default_value = "network",
                   .choices = "network|always",
                   .doc = "what is encrypted and authenticated: what leaves this host, or all"},
        OptionSpec{.name = "interface",
                   .type = OptionType::kString,
                   .doc = "network interface of the servers; empty: loopback when all ranks are on "
                          "one host, else the address of hostname"},
        OptionSpec{.name = "hostname",
                   .type = OptionType::kString,
                   .doc = "own name or address of the servers; empty: the name of the host"},
        OptionSpec{.name = "rendezvous_timeout_ms",
                   .type = OptionType::kInt,
                   .default_value = "30000",
                   .min = 1,
                   .max = 86400000,
                   .doc = "how long the ranks wait for each other at the start"},
        OptionSpec{.name = "resend_ms",
                   .type = OptionType::kInt,
                   .default_value = "500",
                   .min = 1,
                   .max = 86400000,
                   .doc = "silence after which a request is asked about, and sent again if lost"},
        OptionSpec{.name = "lost_after_ms",
                   .type = OptionType::kInt,
                   .default_value = "1000",
                   .min = 1,
                   .max = 86400000,
                   .doc = "how long a rank may be without a connection before it counts as lost"},
        OptionSpec{.name = "heartbeat_ms",
                   .type = OptionType::kInt,
                   .default_value = "1000",
                   .min = 10,
                   .max = 3600000,
                   .doc = "how often a connection is tried out when nothing comes by it"},
        OptionSpec{.name = "heartbeat_timeout_ms",
                   .type = OptionType::kInt,
                   .default_value = "5000",
                   .min = 10,
                   .max = 3600000,
                   .doc = "for how long the other side may leave that unanswered"}});

}  // namespace engine::zmq_ps
