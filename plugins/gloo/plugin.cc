// gloo: the collectives of the Gloo library.
#include "engine/plugin.h"

#include <memory>
#include <string>

#include "collectives.h"
#include "kit/communicator.h"
#include "kit/options.h"
#include "tcp_kit/communicator.h"

namespace engine::gloo {
namespace {

Status Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(host, "gloo", out, [&] {
    const tcp::NetworkSettings network{
        .plugin = "gloo",
        .lanes = static_cast<int>(options.Int("io_threads")),
        .interface = std::string(options.String("interface")),
        .hostname = std::string(options.String("hostname")),
        .key_file = std::string(options.String("key_file")),
        .rendezvous_timeout_ms = options.Int("rendezvous_timeout_ms")};
    const std::string all_reduce(options.String("all_reduce"));
    const auto make_lane = [&](tcp::Connections& connections, int lane, kit::Progress& progress) {
      return std::make_unique<Collectives>(connections, lane, progress, all_reduce);
    };
    return tcp::TcpCommunicator::Create(host, network, make_lane);
  });
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "gloo",
     .version = "1.0.0",
     .kind = PluginKind::kCommunicator,
     .doc = "the collectives of the Gloo library over TCP, to compare with",
     .create = Create},
    NoOps(),
    std::array{
        kit::IntOption("io_threads", "2", 1, 16,
                       "transfers that run at once, each on a thread and connections of its own"),
        kit::StringOption("interface", "",
                          "network interface to use; empty: loopback when all ranks are on one "
                          "host, else the address of hostname"),
        kit::StringOption("hostname", "",
                          "own name or address to use; empty: the name of the host"),
        kit::EnumOption("all_reduce", "auto", "auto|ring|bcube",
                        "Gloo's algorithm; auto: bcube for more than two ranks up to 1 MiB, else "
                        "the ring, which PyTorch and Horovod take for every size"),
        kit::StringOption(
            "key_file", "",
            "file of at least 32 random bytes, the same on all ranks: only who has it "
            "can connect to a rank"),
        kit::IntOption("rendezvous_timeout_ms", "30000", 1, 86400000,
                       "how long the ranks wait for each other at the start")});

}  // namespace engine::gloo
