// tcp: collectives over TCP.
#include "engine/plugin.h"

#include <exception>
#include <string>

#include "communicator.h"

namespace engine::tcp {
namespace {

Status Create(Host& host, const Options& options, Object** out) noexcept {
  if (host.rank_info().is_server != 0) {
    return Status::Error(StatusCode::kConfig,
                         "communicator 'tcp' has no servers: drop --servers or choose one that "
                         "has, such as zmq_ps");
  }
  try {
    const NetworkSettings settings{
        .lanes = static_cast<int>(options.Int("io_threads")),
        .interface = std::string(options.String("interface")),
        .hostname = std::string(options.String("hostname")),
        .congestion_control = std::string(options.String("congestion_control")),
        .key_file = std::string(options.String("key_file")),
        .rendezvous_timeout_ms = options.Int("rendezvous_timeout_ms"),
    };
    ENGINE_ASSIGN_OR_RETURN(auto communicator, TcpCommunicator::Create(host, settings));
    *out = communicator.release();
    return {};
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot start tcp: %s", error.what());
  }
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "tcp",
     .version = "1.0.0",
     .kind = PluginKind::kCommunicator,
     .doc = "collectives over TCP connections between all ranks",
     .create = Create},
    NoOps(),
    std::array{
        OptionSpec{
            .name = "io_threads",
            .type = OptionType::kInt,
            .default_value = "2",
            .min = 1,
            .max = 16,
            .doc = "transfers that run at once, each on a thread and connections of its own"},
        OptionSpec{.name = "interface",
                   .type = OptionType::kString,
                   .doc = "network interface to use; empty: loopback when all ranks are on one "
                          "host, else the address of hostname"},
        OptionSpec{.name = "hostname",
                   .type = OptionType::kString,
                   .doc = "own name or address to use; empty: the name of the host"},
        OptionSpec{.name = "congestion_control",
                   .type = OptionType::kString,
                   .doc =
                       "TCP congestion control of the connections, bbr for example; empty: "
                       "cubic on the loopback interface where the kernel has it, else the host's"},
        OptionSpec{.name = "key_file",
                   .type = OptionType::kString,
                   .doc =
                       "file of at least 32 random bytes, the same on all ranks: only who has it "
                       "can connect to a rank"},
        OptionSpec{.name = "rendezvous_timeout_ms",
                   .type = OptionType::kInt,
                   .default_value = "30000",
                   .min = 1,
                   .max = 86400000,
                   .doc = "how long the ranks wait for each other at the start"}});

}  // namespace engine::tcp
