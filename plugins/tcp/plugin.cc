// tcp: collectives over TCP.
#include "engine/plugin.h"

#include <memory>
#include <string>

#include "all_reduce_choice.h"
#include "channel.h"
#include "collectives.h"
#include "kit/communicator.h"
#include "kit/options.h"
#include "tcp_kit/communicator.h"
#include "wire.h"

namespace engine::tcp {
namespace {

constexpr LinkCost kLinkCost{.message_bytes = kPartBytes,
                             .exchange_up_to_bytes = kExchangeUpToBytes,
                             .header_bytes = sizeof(TransferHeader)};

class ExchangeLane final : public Lane {
 public:
  ExchangeLane(Connections& connections, int number, kit::Progress& progress)
      : channel_(connections, number, progress) {}
  Status Run(kit::PooledWork& work) noexcept override { return collectives_.Run(work); }
  int waiting_for() const noexcept override { return channel_.waiting_for(); }

 private:
  Channel channel_;
  Collectives collectives_{channel_};
};

Status Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(host, "tcp", out, [&] {
    const NetworkSettings network{
        .plugin = "tcp",
        .lanes = static_cast<int>(options.Int("io_threads")),
        .send_buffer_bytes = kWindowBytes,
        .interface = std::string(options.String("interface")),
        .hostname = std::string(options.String("hostname")),
        .congestion_control = std::string(options.String("congestion_control")),
        .key_file = std::string(options.String("key_file")),
        .rendezvous_timeout_ms = options.Int("rendezvous_timeout_ms")};
    const auto make_lane = [](Connections& connections, int number, kit::Progress& progress) {
      return std::make_unique<ExchangeLane>(connections, number, progress);
    };
    return TcpCommunicator::Create(host, network, make_lane, &kLinkCost);
  });
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
        kit::IntOption("io_threads", "2", 1, 16,
                       "transfers that run at once, each on a thread and connections of its own"),
        kit::StringOption("interface", "",
                          "network interface to use; empty: loopback when all ranks are on one "
                          "host, else the address of hostname"),
        kit::StringOption("hostname", "",
                          "own name or address to use; empty: the name of the host"),
        kit::StringOption(
            "congestion_control", "",
            "TCP congestion control of the connections, bbr for example; empty: "
            "cubic on the loopback interface where the kernel has it, else the host's"),
        kit::StringOption(
            "key_file", "",
            "file of at least 32 random bytes, the same on all ranks: only who has it "
            "can connect to a rank"),
        kit::IntOption("rendezvous_timeout_ms", "30000", 1, 86400000,
                       "how long the ranks wait for each other at the start")});

}  // namespace engine::tcp
