// gloo: the collectives of the Gloo library.
#include <memory>
#include <string>

#include "collectives.h"
#include "kit/communicator.h"
#include "kit/create.h"
#include "kit/options.h"
#include "tcp_kit/communicator.h"
#include "tcp_kit/options.h"

namespace engine::gloo {
namespace {

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(host, "gloo", out, [&] {
    const std::string all_reduce(options.String("all_reduce"));
    const auto make_lane = [&](tcp::Connections& connections, int lane, kit::Progress& progress) {
      return std::make_unique<Collectives>(connections, lane, progress, all_reduce);
    };
    return tcp::TcpCommunicator::Create(host, tcp::NetworkOf(options, "gloo"), make_lane);
  });
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kCommunicator, "gloo", "1.0.0",
    "the collectives of the Gloo library over TCP, to compare with", Create,
    tcp::NetworkOptionsAnd(
        kit::EnumOption("all_reduce", "auto", "auto|ring|bcube",
                        "Gloo's algorithm; auto: bcube for more than two ranks up to 1 MiB, else "
                        "the ring, which PyTorch and Horovod take for every size")));

}  // namespace engine::gloo
