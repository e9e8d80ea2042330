// The Host that a plugin of one rank sees.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/rank_context.h"
#include "core/plugin/plugin_set.h"

namespace engine::plugin {

class PluginHost final : public HostBase {
 public:
  using MetricSink = std::function<void(std::string_view name, double value)>;

  // Borrows `rank` and `device`, which points to where the device will be known; null for a plugin
  // that works on none. `metrics` may be null.
  PluginHost(std::string plugin, base::RankContext& rank, Device* const* device, MetricSink metrics)
      : plugin_(std::move(plugin)), rank_(rank), device_(device), metrics_(std::move(metrics)) {}

  // Of what this plugin has made inside of itself as `rank`.
  PluginHost(const PluginHost& outer, const std::string& label, base::RankContext& rank)
      : PluginHost(outer.plugin_ + "/" + label, rank, outer.device_, outer.metrics_) {}

  RankInfo rank_info() const noexcept override { return rank_.info; }
  Device* device() const noexcept override { return device_ == nullptr ? nullptr : *device_; }
  void Log(LogLevel level, std::string_view message) noexcept override;
  void Metric(std::string_view name, double value) noexcept override;
  Status StoreSet(std::string_view key, std::span<const uint8_t> value) noexcept override;
  Status StoreGet(std::string_view key, int64_t timeout_ms,
                  void (*sink)(void* context, const uint8_t* data, uint64_t size),
                  void* context) noexcept override;
  Status StoreHas(std::string_view key, uint32_t* exists) noexcept override;
  void* Query(std::string_view id) noexcept override {
    return id == InnerPlugins::kId ? inner_.get() : nullptr;
  }

  base::RankContext& rank() const { return rank_; }
  // For the object of `choice`, before it is made: it may make others inside of it. Borrows.
  void Offer(const PluginChoice& choice) {
    if (!choice.inner.empty()) inner_ = choice.entry.make_inner(choice, *this);
  }

 private:
  std::string Key(std::string_view key) const;
  template <typename Call>
  Status InStore(Call&& call) const noexcept;

  const std::string plugin_;
  base::RankContext& rank_;
  Device* const* const device_;
  const MetricSink metrics_;  // called from any thread
  std::shared_ptr<InnerPlugins> inner_;
};

}  // namespace engine::plugin
