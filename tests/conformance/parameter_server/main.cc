// parameter_server_conformance [--plugin PATH] [--servers 0,2] [--sync N=V,...] [--bounded N=V,...]
//     [--async N=V,...] [--gtest_...]
//
// --sync, --bounded and --async give the options that choose the mode; one that is not given is not
// tested. --servers: numbers of members that are servers, 0 for servers inside of the ranks.
// Without --plugin: zmq_ps in every mode.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "tests/conformance/parameter_server/served_world.h"

namespace engine::test {
namespace {

using Words = std::vector<std::string>;

struct Arguments {
  std::string plugin = ENGINE_TEST_PLUGIN_DIR "/libengine_zmq_ps.so";
  std::vector<int> servers = {0, 2};
  std::map<UpdateMode, Words> modes;
};

// Throws CLI::Error.
OptionValues::Overrides OverridesOf(const Words& words) {
  OptionValues::Overrides overrides;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw CLI::ValidationError("'" + word + "' is not NAME=VALUE");
    }
    overrides[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return overrides;
}

// "libengine_zmq_ps.so" in kSync with two servers is zmq_ps_sync_2_members.
std::string NameOf(const std::string& library, UpdateMode mode, int servers) {
  std::string name = library.substr(library.rfind('/') + 1);
  name = name.substr(0, name.rfind(".so"));
  if (name.starts_with("libengine_")) name = name.substr(10);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  name.append("_").append(Name(mode));
  if (servers == 0) return name.append("_inside");
  return name.append("_").append(std::to_string(servers)).append("_members");
}

std::vector<ServedCase> CasesOfArguments(Arguments arguments) {
  if (arguments.modes.empty()) {
    for (const UpdateMode mode : kAllModes) {
      arguments.modes[mode] = {std::string("update=") + Name(mode)};
    }
    arguments.modes[UpdateMode::kBounded].push_back("staleness=2");
  }
  std::vector<ServedCase> cases;
  for (const auto& [mode, words] : arguments.modes) {
    for (const int servers : arguments.servers) {
      cases.push_back({NameOf(arguments.plugin, mode, servers), mode, servers, arguments.plugin,
                       OverridesOf(words)});
    }
  }
  return cases;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("What a communicator with parameters at servers must do");
  app.allow_extras();  // of GoogleTest
  app.add_option("--servers", arguments.servers, "of their own")->delimiter(',');
  std::map<UpdateMode, Words> modes;
  for (const UpdateMode mode : kAllModes) {
    app.add_option(std::string("--") + Name(mode), modes[mode], "what chooses it")->delimiter(',');
  }
  auto* const plugin = app.add_option("--plugin", arguments.plugin, "the library");
  try {
    app.parse(argc, argv);
    std::erase_if(modes, [](const auto& mode) { return mode.second.empty(); });
    if (*plugin && modes.empty()) {
      throw CLI::ValidationError("--plugin needs --sync, --bounded or --async");
    }
    arguments.modes = modes;
    SetCases(CasesOfArguments(arguments));
  } catch (const CLI::Error& error) {
    return app.exit(error);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace engine::test

int main(int argc, char** argv) {
  return engine::test::Main(argc, argv);
}
