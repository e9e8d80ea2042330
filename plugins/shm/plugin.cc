// shm: collectives between the ranks of one host through memory that all of them map.
#include "communicator.h"
#include "kit/communicator.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine::shm {
namespace {

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(host, "shm", out, [&] {
    return ShmCommunicator::Create(
        host, {.chunk_bytes = static_cast<size_t>(options.Int("chunk_kb")) << 10,
               .spin_us = options.Int("spin_us")});
  });
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kCommunicator, "shm", "1.0.0",
    "collectives between ranks of one host through shared memory", Create,
    std::array{
        kit::IntOption("chunk_kb", "128", 4, 16384,
                       "KiB that a rank stages at once; it has four such stages, which should "
                       "fit into the second-level cache of a core"),
        kit::IntOption("spin_us", "50", 0, 1000000,
                       "microseconds that a thread looks for its peers before it sleeps, where "
                       "every rank has a core; less for the thread beside compute")});

}  // namespace engine::shm
