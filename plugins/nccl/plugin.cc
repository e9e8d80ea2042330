// nccl: collectives between GPUs.
#include "engine/plugin.h"

#include <exception>
#include <string>
#include <string_view>

#include "communicator.h"
#include "kit/options.h"

namespace engine::nccl {
namespace {

Status Create(Host& host, const Options& options, Object** out) noexcept {
  if (host.rank_info().is_server != 0) {
    return Status::Error(StatusCode::kConfig,
                         "communicator 'nccl' has no servers: drop --servers or choose one that "
                         "has, such as zmq_ps");
  }
  const int64_t min_ctas = options.Int("min_ctas"), max_ctas = options.Int("max_ctas");
  if (max_ctas > 0 && min_ctas > max_ctas) {
    return Status::Error(StatusCode::kConfig, "nccl: min_ctas %lld is more than max_ctas %lld",
                         static_cast<long long>(min_ctas), static_cast<long long>(max_ctas));
  }
  const std::string_view policy = options.String("cta_policy");
  try {
    const Settings settings{
        .library = std::string(options.String("library")),
        .symmetric = options.Bool("symmetric"),
        .rendezvous_timeout_ms = options.Int("rendezvous_timeout_ms"),
        .min_ctas = static_cast<int>(min_ctas),
        .max_ctas = static_cast<int>(max_ctas),
        .cta_policy = policy == "zero"         ? 2
                      : policy == "efficiency" ? 1
                                               : 0,
        .ranks_per_id = options.Int("ranks_per_id"),
    };
    ENGINE_ASSIGN_OR_RETURN(auto communicator, NcclCommunicator::Create(host, settings));
    *out = communicator.release();
    return {};
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot start nccl: %s", error.what());
  }
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "nccl",
     .version = "1.0.0",
     .kind = PluginKind::kCommunicator,
     .doc = "collectives between GPUs by NCCL, on a stream of their own",
     .create = Create},
    NoOps(),
    std::array{
        kit::StringOption("library", "libnccl.so.2",
                          "NCCL 2.19 or later: a path, or a name for the loader to look for"),
        kit::IntOption("rendezvous_timeout_ms", "60000", 1, 86400000,
                       "how long the ranks wait for each other, and NCCL connects, at the start"),
        kit::IntOption("min_ctas", "0", 0, 64,
                       "least thread blocks of a transfer; 0: NCCL decides"),
        kit::IntOption("max_ctas", "0", 0, 64,
                       "most thread blocks of a transfer, which compute then cannot use; 0: "
                       "NCCL decides"),
        kit::EnumOption("cta_policy", "default", "default|efficiency|zero",
                        "efficiency: few thread blocks (NCCL 2.27); zero: copies by the copy "
                        "engines where NCCL can (2.28, with symmetric)"),
        kit::IntOption("ranks_per_id", "128", 1, 1048576,
                       "one of so many ranks helps the others to connect at the start; NCCL "
                       "before 2.23: rank 0 does"),
        kit::BoolOption("symmetric", "false",
                        "register gradients and parameters as symmetric windows: GPUs of one "
                        "NVLink domain, NCCL 2.27 or later; all ranks must allocate alike")});

}  // namespace engine::nccl
