// A temporary folder of fixture plugins, which a test may damage.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "engine/plugin.h"

namespace engine::plugin {

class PluginFolder {
 public:
  PluginFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "engine_plugins_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~PluginFolder() { std::filesystem::remove_all(path_); }
  PluginFolder(const PluginFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/libengine_" + name + ".so"; }

  // Copies a fixture, under another name if one is given. Returns the file.
  std::string Add(const std::string& fixture, const std::string& name = "") {
    const std::string file = File(name.empty() ? fixture : name);
    std::filesystem::copy_file(ENGINE_FIXTURE_DIR "/libengine_" + fixture + ".so", file);
    return file;
  }

  static std::string ReadFile(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  static void WriteFile(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
  }

  // Changes the descriptor in a file: change(header, whole descriptor).
  template <typename Change>
  static void Patch(const std::string& file, Change change) {
    std::string bytes = ReadFile(file);
    PluginHeader header;
    size_t at = bytes.find(Bytes(kPluginMagic));
    for (; at != std::string::npos; at = bytes.find(Bytes(kPluginMagic), at + 1)) {
      if (bytes.size() - at < sizeof header) continue;
      std::memcpy(static_cast<void*>(&header), bytes.data() + at, sizeof header);
      if (header.fingerprint == ENGINE_ABI_FINGERPRINT) break;  // else the number in code
    }
    ASSERT_NE(at, std::string::npos) << file;
    change(header, bytes.data() + at);
    std::memcpy(bytes.data() + at, static_cast<const void*>(&header), sizeof header);
    WriteFile(file, bytes);
  }

  // Whether any code of the library has run.
  bool Initialised(const std::string& name) const {
    return std::filesystem::exists(File(name) + ".initialised");
  }

 private:
  static std::string Bytes(uint64_t number) {
    return {reinterpret_cast<const char*>(&number), sizeof number};
  }

  std::string path_;
};

// A Host that keeps what is logged.
class LogHost final : public Host {
 public:
  RankInfo rank_info() const noexcept override { return {}; }
  Device* device() const noexcept override { return nullptr; }
  void Log(LogLevel, std::string_view message) noexcept override {
    log += std::string(message) + "\n";
  }
  void Metric(std::string_view, double) noexcept override {}
  Status StoreSet(std::string_view, std::span<const uint8_t>) noexcept override { return {}; }
  Status StoreGet(std::string_view, int64_t, void (*)(void*, const uint8_t*, uint64_t),
                  void*) noexcept override {
    return {};
  }
  Status StoreHas(std::string_view, bool*) noexcept override { return {}; }

  std::string log;
};

}  // namespace engine::plugin
