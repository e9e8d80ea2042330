// Hosts of ranks that are threads of one process: they share a store in memory.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/host.h"

namespace engine::conform {

// Thread-safe.
class MemoryStoreTable {
 public:
  void Set(std::string_view key, std::string value) {
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(std::string(key), std::move(value));
    changed_.notify_all();
  }

  bool Has(std::string_view key) const {
    const std::lock_guard lock(mutex_);
    return values_.find(key) != values_.end();
  }

  // False when `key` does not appear in time.
  bool Get(std::string_view key, int64_t timeout_ms, std::string* out) const {
    std::unique_lock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    const auto present = [&] { return values_.find(key) != values_.end(); };
    if (!changed_.wait_until(lock, deadline, present)) return false;
    *out = values_.find(key)->second;
    return true;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;  // guarded by mutex_
};

// The host of one rank, by default of a world of one; keeps what it is told. Thread-safe.
class MemoryHost final : public HostBase {
 public:
  explicit MemoryHost(
      const RankInfo& ranks = {},
      std::shared_ptr<MemoryStoreTable> store = std::make_shared<MemoryStoreTable>(),
      Device* device = nullptr)
      : ranks_(ranks), store_(std::move(store)), device_(device) {}

  RankInfo rank_info() const noexcept override { return ranks_; }
  Device* device() const noexcept override { return device_; }

  void Log(LogLevel, std::string_view message) noexcept override {
    const std::lock_guard lock(mutex_);
    log_.emplace_back(message);
  }
  void Metric(std::string_view name, double value) noexcept override {
    const std::lock_guard lock(mutex_);
    metrics_.insert_or_assign(std::string(name), value);
  }

  Status StoreSet(std::string_view key, std::span<const uint8_t> value) noexcept override {
    store_->Set(key, std::string(value.begin(), value.end()));
    return {};
  }
  Status StoreGet(std::string_view key, int64_t timeout_ms,
                  void (*sink)(void* context, const uint8_t* data, uint64_t size),
                  void* context) noexcept override {
    std::string value;
    ++asked_;
    // The answer of a real store takes its time.
    if (timeout_ms <= 0 || !store_->Get(key, timeout_ms, &value)) {
      return Status::Error(StatusCode::kTimeout, "the store has no key '%.*s' after %lld ms",
                           static_cast<int>(key.size()), key.data(),
                           static_cast<long long>(timeout_ms));
    }
    sink(context, reinterpret_cast<const uint8_t*>(value.data()), value.size());
    return {};
  }
  Status StoreHas(std::string_view key, uint32_t* exists) noexcept override {
    ++asked_;
    *exists = store_->Has(key);
    return {};
  }

  // How often the store was asked since the last call.
  int TakeAsked() { return asked_.exchange(0); }

  std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  std::map<std::string, double> metrics() const {
    const std::lock_guard lock(mutex_);
    return metrics_;
  }

 private:
  const RankInfo ranks_;
  const std::shared_ptr<MemoryStoreTable> store_;
  Device* const device_;
  std::atomic<int> asked_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> log_;           // guarded by mutex_
  std::map<std::string, double> metrics_;  // guarded by mutex_
};

using SingleHost = MemoryHost;  // where it is that of a world of one

// One host per rank, all on one machine; `device` says which device a rank has, if any.
inline std::vector<std::unique_ptr<MemoryHost>> MakeMemoryHosts(
    int world_size, const std::function<Device*(int rank)>& device = {},
    int64_t rendezvous_timeout_ms = RankInfo().rendezvous_timeout_ms) {
  auto store = std::make_shared<MemoryStoreTable>();
  std::vector<std::unique_ptr<MemoryHost>> hosts;
  for (int rank = 0; rank < world_size; ++rank) {
    const RankInfo ranks{.rank = rank,
                         .world_size = world_size,
                         .local_rank = rank,
                         .local_world_size = world_size,
                         .rendezvous_timeout_ms = rendezvous_timeout_ms};
    hosts.push_back(std::make_unique<MemoryHost>(ranks, store, device ? device(rank) : nullptr));
  }
  return hosts;
}

}  // namespace engine::conform
