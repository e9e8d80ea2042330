// nccl: collectives between GPUs.
#include "engine/plugin.h"

#include <string>
#include <string_view>

#include "communicator.h"
#include "kit/communicator.h"
#include "kit/options.h"

namespace engine::nccl {
namespace {

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const int64_t min_ctas = options.Int("min_ctas"), max_ctas = options.Int("max_ctas");
  if (max_ctas > 0 && min_ctas > max_ctas) {
    return Status::Error(StatusCode::kConfig, "nccl: min_ctas %lld is more than max_ctas %lld",
                         static_cast<long long>(min_ctas), static_cast<long long>(max_ctas));
  }
  const std::string_view policy = options.String("cta_policy");
  return kit::CreateCommunicator(host, "nccl", out, [&] {
    return NcclCommunicator::Create(host, {.library = std::string(options.String("library")),
                                           .symmetric = options.Bool("symmetric"),
                                           .min_ctas = static_cast<int>(min_ctas),
                                           .max_ctas = static_cast<int>(max_ctas),
                                           .cta_policy = policy == "zero"         ? 2
                                                         : policy == "efficiency" ? 1
                                                                                  : 0,
                                           .ranks_per_id = options.Int("ranks_per_id")});
  });
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
