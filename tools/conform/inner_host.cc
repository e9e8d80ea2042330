#include "tools/conform/inner_host.h"

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "core/plugin/plugin_host.h"

namespace engine::conform {
namespace {

// Posts are the core's own and no plugin's.
class StoreOfHost final : public base::Store {
 public:
  explicit StoreOfHost(Host& host) : host_(host) {}
  Status Set(std::string_view key, std::string_view value) override {
    return host_.StoreSet(key, {reinterpret_cast<const uint8_t*>(value.data()), value.size()});
  }
  Result<std::string> Get(std::string_view key, int64_t timeout_ms) override {
    std::string value;
    ENGINE_RETURN_IF_ERROR(StoreGetString(host_, key, timeout_ms, &value));
    return value;
  }
  Result<bool> Has(std::string_view key) override {
    uint32_t exists = 0;
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(key, &exists));
    return exists != 0;
  }
  Status Post(std::string_view) override { return {}; }
  void Listen(std::function<void(std::string_view)>) override {}

 private:
  Host& host_;
};

struct Outer {
  Outer(const plugin::PluginChoice& of, Host& host)
      : choice(of),
        store(host),
        rank{.info = host.rank_info(),
             .store = store,
             .abort = abort,
             .stop_requested = stop,
             .log = [&host](LogLevel level, std::string_view text) { host.Log(level, text); }},
        device(host.device()),
        offers(choice.entry.name, rank, &device,
               [&host](std::string_view name, double value) { host.Metric(name, value); }) {
    offers.Offer(choice);
  }

  const plugin::PluginChoice choice;
  StoreOfHost store;
  base::AbortSignal abort;
  const std::atomic<int> stop{0};
  base::RankContext rank;
  Device* device;
  plugin::PluginHost offers;
};

}  // namespace

Host& OfferInner(const plugin::PluginChoice& choice, Host& host) {
  static auto* const mutex = new std::mutex;
  static auto* const outers = new std::deque<Outer>;  // guarded by mutex
  if (choice.inner.empty()) return host;
  const std::lock_guard lock(*mutex);
  return outers->emplace_back(choice, host).offers;
}

}  // namespace engine::conform
