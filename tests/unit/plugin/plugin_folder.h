// A temporary folder of fixture plugins, which a test may damage.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "app/plugins/catalog.h"
#include "app/plugins/option_value.h"
#include "engine/plugin.h"
#include "tests/support/temp_folder.h"

namespace engine::plugin {

class PluginFolder {
 public:
  const std::string& path() const { return folder_.path().native(); }
  std::string File(const std::string& name) const { return path() + "/libengine_" + name + ".so"; }

  // Copies a fixture, under another name if one is given. Returns the file.
  std::string Add(const std::string& fixture, const std::string& name = "") {
    const std::string file = File(name.empty() ? fixture : name);
    std::filesystem::copy_file(ENGINE_FIXTURE_DIR "/libengine_" + fixture + ".so", file);
    return file;
  }

  // A fixture with the given option set and its other options at their defaults.
  PluginChoice Choose(const std::string& fixture, const std::string& option = "",
                      const std::string& value = "") {
    if (!std::filesystem::exists(File(fixture))) Add(fixture);
    const plugins::PluginFile file = plugins::ReadPluginFile(File(fixture));
    EXPECT_TRUE(file.problem.ok()) << file.problem.message();
    PluginChoice choice{file, {}};
    for (const OptionSpec* spec : plugins::OptionsOf(file.options, "")) {
      const bool given = spec->name.view() == option;
      choice.options.push_back(given ? *plugins::ParseOptionValue(*spec, value)
                                     : plugins::DefaultOf(*spec));
    }
    return choice;
  }

  static void WriteFile(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
  }

  // Changes the descriptor in a file: change(header, whole descriptor).
  template <typename Change>
  static void Patch(const std::string& file, Change change) {
    std::string bytes = test::ReadWhole(file);
    PluginHeader header;
    size_t at = bytes.find(Bytes(kPluginMagic));
    for (; at != std::string::npos; at = bytes.find(Bytes(kPluginMagic), at + 1)) {
      if (bytes.size() - at < sizeof header) continue;
      std::memcpy(static_cast<void*>(&header), bytes.data() + at, sizeof header);
      if (header.options.layouts[0] == kLayoutOf<Options>) break;  // else the number in code
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

  test::TempFolder folder_;
};

}  // namespace engine::plugin
