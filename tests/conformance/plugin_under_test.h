// The conformance kit's view of a library, for tests that know which plugin of this build they judge.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/memory_host.h"
#include "tools/conform/plugin_under_test.h"

namespace engine::test {

// Of a plugin of this build.
inline std::string PluginPath(const std::string& name) {
  return ENGINE_TEST_PLUGIN_DIR "/libengine_" + name + ".so";
}

// "libengine_tcp", for the names of tests.
inline std::string NameOfLibrary(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  name.erase(std::min(name.find('.'), name.size()));
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
constexpr auto kNameOfLibrary = [](const ::testing::TestParamInfo<std::string>& library) {
  return NameOfLibrary(library.param);
};

// The libraries that a suite judges: those of the environment variable ENGINE_CONFORMANCE_PLUGINS
// (paths with ':' between them) if there are any, else the named plugins of this build.
inline std::vector<std::string> PluginPaths(const std::vector<std::string>& names) {
  std::vector<std::string> paths;
  if (const char* list = std::getenv("ENGINE_CONFORMANCE_PLUGINS")) {
    std::istringstream stream(list);
    for (std::string path; std::getline(stream, path, ':');) {
      if (!path.empty()) paths.push_back(path);
    }
  }
  if (!paths.empty()) return paths;
  for (const std::string& name : names) paths.push_back(PluginPath(name));
  return paths;
}

}  // namespace engine::test
