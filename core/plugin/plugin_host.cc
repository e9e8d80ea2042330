#include "core/plugin/plugin_host.h"

#include <exception>

namespace engine::plugin {

// Plugins log from any of their threads; the sink orders lines.
void PluginHost::Log(LogLevel level, std::string_view message) noexcept {
  try {
    rank_.Log(level, std::string(plugin_).append(": ").append(message));
  } catch (const std::exception&) {
    // A line that cannot be written has nowhere else to go.
  }
}

void PluginHost::Metric(std::string_view name, double value) noexcept {
  try {
    if (metrics_) metrics_(name, value);
  } catch (const std::exception& error) {
    Log(LogLevel::kWarning, std::string_view(error.what()));
  }
}

// store key := "plugin/" name { "/" label } ":" key, so that plugins do not meet.
std::string PluginHost::Key(std::string_view key) const {
  return "plugin/" + plugin_ + ":" + std::string(key);
}

// Nothing of ours may throw into a plugin. After an abort the contract promises kAborted or
// kPeerLost; the reason may be this rank's own, primary error.
template <typename Call>
Status PluginHost::InStore(Call&& call) const noexcept {
  try {
    const Status status = call();
    if (status.ok() || !rank_.abort.raised() || base::IsSecondary(status.code())) return status;
    return Status::Error(StatusCode::kAborted, "%s", status.message()).WithRank(status.rank());
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "the store of the run failed: %s",
                         error.what());
  }
}

Status PluginHost::StoreSet(std::string_view key, std::span<const uint8_t> value) noexcept {
  return InStore([&] {
    const std::string_view bytes(reinterpret_cast<const char*>(value.data()), value.size());
    return rank_.store.Set(Key(key), bytes);
  });
}

Status PluginHost::StoreGet(std::string_view key, int64_t timeout_ms,
                            void (*sink)(void* context, const uint8_t* data, uint64_t size),
                            void* context) noexcept {
  return InStore([&]() -> Status {
    ENGINE_ASSIGN_OR_RETURN(const std::string value, rank_.store.Get(Key(key), timeout_ms));
    sink(context, reinterpret_cast<const uint8_t*>(value.data()), value.size());
    return {};
  });
}

Status PluginHost::StoreHas(std::string_view key, uint32_t* exists) noexcept {
  return InStore([&]() -> Status {
    ENGINE_ASSIGN_OR_RETURN(*exists, rank_.store.Has(Key(key)));
    return {};
  });
}

}  // namespace engine::plugin
