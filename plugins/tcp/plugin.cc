// tcp: collectives over TCP.
#include <memory>

#include "all_reduce_choice.h"
#include "collectives.h"
#include "kit/communicator.h"
#include "kit/create.h"
#include "tcp_kit/communicator.h"
#include "tcp_kit/options.h"
#include "wire.h"

namespace engine::tcp {
namespace {

constexpr LinkCost kLinkCost{.message_bytes = kPartBytes,
                             .exchange_up_to_bytes = kExchangeUpToBytes,
                             .header_bytes = sizeof(TransferHeader)};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(host, "tcp", out, [&] {
    NetworkSettings network = NetworkOf(options, "tcp");
    network.send_buffer_bytes = kWindowBytes;
    const auto make_lane = [](Connections& connections, int number, kit::Progress& progress) {
      return std::make_unique<Collectives>(connections, number, progress);
    };
    return TcpCommunicator::Create(host, network, make_lane, &kLinkCost);
  });
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kCommunicator, "tcp", "1.0.0", "collectives over TCP connections between all ranks",
    Create, kNetworkOptions);

}  // namespace engine::tcp
