// For communicators around others (engine/ext/inner_plugins.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/communicator.h"
#include "engine/ext/inner_plugins.h"
#include "engine/host.h"
#include "engine/status.h"

namespace engine::kit {

// InnerPlugins::CreateCommunicator with the options that the user gave; kUnsupported where the engine
// makes none.
inline Result<std::unique_ptr<Communicator>> MakeInner(Host& host, std::string_view plugin,
                                                       std::string_view label,
                                                       std::span<const int32_t> ranks = {}) {
  auto* const plugins = Query<InnerPlugins>(host);
  if (plugins == nullptr) {
    return Status::Error(StatusCode::kUnsupported, "this engine makes no inner communicator");
  }
  Communicator* made = nullptr;
  ENGINE_RETURN_IF_ERROR(
      plugins->CreateCommunicator({.plugin = plugin, .label = label}, ranks, &made));
  return std::unique_ptr<Communicator>(made);
}

// Of the host that a rank is on, where the launcher says that it shares it. Ranks in two network
// namespaces do not reach each other as those of one host do.
inline std::string HostName(const RankInfo& rank) {
  if (rank.local_world_size == 1) return "of rank " + std::to_string(rank.rank);
  std::string kernel;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> kernel;
  std::error_code error;
  return kernel + std::filesystem::read_symlink("/proc/self/ns/net", error).string();
}

}  // namespace engine::kit
