// Hosts of ranks that are processes of one machine: their store is a folder.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/host.h"

namespace engine::launch {

class FolderHost final : public HostBase {
 public:
  FolderHost(const RankInfo& ranks, std::filesystem::path folder, Device* device = nullptr)
      : ranks_(ranks), folder_(std::move(folder)), device_(device) {}

  RankInfo rank_info() const noexcept override { return ranks_; }
  Device* device() const noexcept override { return device_; }
  void Log(LogLevel, std::string_view) noexcept override {}
  void Metric(std::string_view, double) noexcept override {}

  // Written aside and renamed, so a file is whole when it is seen.
  Status StoreSet(std::string_view key, std::span<const uint8_t> value) noexcept override {
    const std::filesystem::path aside = folder_ / (FileName(key) + "." + std::to_string(getpid()));
    std::ofstream file(aside, std::ios::binary);
    file.write(reinterpret_cast<const char*>(value.data()),
               static_cast<std::streamsize>(value.size()));
    file.close();
    std::error_code error;
    std::filesystem::rename(aside, folder_ / FileName(key), error);
    if (!error) return {};
    return Status::Error(StatusCode::kStorage, "cannot set '%s': %s", aside.c_str(),
                         error.message().c_str());
  }

  Status StoreGet(std::string_view key, int64_t timeout_ms,
                  void (*sink)(void* context, const uint8_t* data, uint64_t size),
                  void* context) noexcept override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    uint32_t exists = 0;
    while (true) {
      ENGINE_RETURN_IF_ERROR(StoreHas(key, &exists));
      if (exists) break;
      if (std::chrono::steady_clock::now() > deadline) {
        return Status::Error(StatusCode::kTimeout, "the store has no key '%.*s'",
                             static_cast<int>(key.size()), key.data());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::ifstream file(folder_ / FileName(key), std::ios::binary);
    const std::string value{std::istreambuf_iterator<char>(file), {}};
    sink(context, reinterpret_cast<const uint8_t*>(value.data()), value.size());
    return {};
  }

  Status StoreHas(std::string_view key, uint32_t* exists) noexcept override {
    std::error_code error;
    *exists = std::filesystem::exists(folder_ / FileName(key), error);
    return {};
  }

 private:
  static std::string FileName(std::string_view key) {
    std::string name(key);
    for (char& c : name) {
      if (c == '/') c = '_';
    }
    return name;
  }

  const RankInfo ranks_;
  const std::filesystem::path folder_;
  Device* const device_;
};

}  // namespace engine::launch
