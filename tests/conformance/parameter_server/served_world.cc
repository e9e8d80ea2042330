#include "tests/conformance/parameter_server/served_world.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "tests/support/memory_host.h"
#include "tests/support/served_ranks.h"

namespace engine::test {
namespace {

class FakeWorld final : public ServedWorld {
 public:
  explicit FakeWorld(const ServedSettings& settings) : run_(settings) {}
  Result<std::unique_ptr<Communicator>> MakeRank(int rank, int) override {
    return run_.MakeRank(rank);
  }
  Result<std::unique_ptr<Communicator>> MakeServer(int index) override {
    return run_.MakeServer(index);
  }

 private:
  ServedRun run_;
};

class PluginWorld final : public ServedWorld {
 public:
  PluginWorld(const PluginUnderTest& plugin, const RunShape& shape,
              OptionValues::Overrides overrides)
      : plugin_(plugin), shape_(shape), overrides_(std::move(overrides)) {}

  Result<std::unique_ptr<Communicator>> MakeRank(int rank, int incarnation) override {
    return Make({.rank = rank,
                 .world_size = shape_.ranks,
                 .local_rank = rank,
                 .local_world_size = shape_.ranks,
                 .servers = shape_.servers,
                 .incarnation = incarnation});
  }
  Result<std::unique_ptr<Communicator>> MakeServer(int index) override {
    return Make({.rank = index,
                 .world_size = shape_.ranks,
                 .local_world_size = shape_.ranks,
                 .servers = shape_.servers,
                 .is_server = 1});
  }

 private:
  Result<std::unique_ptr<Communicator>> Make(const RankInfo& info) {
    Host* host = nullptr;
    {
      const std::lock_guard lock(mutex_);
      hosts_.push_back(std::make_unique<MemoryHost>(info, store_));
      host = hosts_.back().get();
    }
    return plugin_.Create<Communicator>(*host, overrides_);
  }

  const PluginUnderTest plugin_;
  const RunShape shape_;
  const OptionValues::Overrides overrides_;
  const std::shared_ptr<MemoryStoreTable> store_ = std::make_shared<MemoryStoreTable>();
  std::mutex mutex_;
  std::vector<std::unique_ptr<MemoryHost>> hosts_;  // guarded by mutex_
};

std::string CaseName(std::string stem, UpdateMode mode, int servers) {
  stem.append("_").append(Name(mode));
  if (servers == 0) return stem.append("_inside");
  return stem.append("_").append(std::to_string(servers)).append("_members");
}

// "a=1,b=x"
Result<OptionValues::Overrides> ParseOptions(const std::string& text) {
  OptionValues::Overrides overrides;
  std::istringstream stream(text);
  for (std::string option; std::getline(stream, option, ',');) {
    const size_t equals = option.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Status::Error(StatusCode::kInvalidArgument, "'%s' is not NAME=VALUE", option.c_str());
    }
    overrides[option.substr(0, equals)] = option.substr(equals + 1);
  }
  return overrides;
}

// "0,2"
Result<std::vector<int>> ParseServers(const std::string& text) {
  std::vector<int> servers;
  std::istringstream stream(text);
  for (std::string number; std::getline(stream, number, ',');) {
    int value = -1;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() || value < 0) {
      return Status::Error(StatusCode::kInvalidArgument, "'%s' is not a number of servers",
                           number.c_str());
    }
    servers.push_back(value);
  }
  return servers;
}

std::string StemOf(const std::string& library) {
  std::string stem = library.substr(library.rfind('/') + 1);
  stem = stem.substr(0, stem.rfind(".so"));
  if (stem.rfind("libengine_", 0) == 0) stem = stem.substr(10);
  std::replace_if(
      stem.begin(), stem.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return stem;
}

// A library with the options that choose each mode.
struct Library {
  std::string path;
  OptionValues::Overrides common;
  std::map<UpdateMode, OptionValues::Overrides> modes;
  std::vector<int> servers = {0, 2};
};

std::vector<ServedCase> CasesOfLibrary(const Library& library) {
  std::vector<ServedCase> cases;
  for (const auto& [mode, options] : library.modes) {
    for (const int servers : library.servers) {
      OptionValues::Overrides overrides = library.common;
      for (const auto& [name, value] : options) overrides[name] = value;
      cases.push_back({CaseName(StemOf(library.path), mode, servers), mode, servers, library.path,
                       std::move(overrides)});
    }
  }
  return cases;
}

std::vector<ServedCase> CasesOfThisBuild() {
  std::vector<ServedCase> cases = FakeCases();
#ifdef ENGINE_TEST_ZMQ_PS
  const Library zmq_ps{
      .path = ENGINE_TEST_PLUGIN_DIR "/libengine_zmq_ps.so",
      .modes = {{UpdateMode::kSync, {{"update", "sync"}}},
                {UpdateMode::kBounded, {{"update", "bounded"}, {"staleness", "2"}}},
                {UpdateMode::kAsync, {{"update", "async"}}}}};
  for (ServedCase& served : CasesOfLibrary(zmq_ps)) cases.push_back(std::move(served));
#endif
  return cases;
}

Status TakeArgument(const std::string& name, const std::string& value, Library* library) {
  if (name == "--plugin") {
    library->path = value;
    return {};
  }
  if (name == "--servers") {
    ENGINE_ASSIGN_OR_RETURN(library->servers, ParseServers(value));
    return {};
  }
  ENGINE_ASSIGN_OR_RETURN(const OptionValues::Overrides options, ParseOptions(value));
  if (name == "--options") {
    library->common = options;
    return {};
  }
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kBounded, UpdateMode::kAsync}) {
    if (name != std::string("--").append(Name(mode))) continue;
    library->modes[mode] = options;
    return {};
  }
  return Status::Error(StatusCode::kUnsupported, "unknown");
}

std::vector<ServedCase>& Cases() {
  static std::vector<ServedCase> cases;
  return cases;
}

template <typename Predicate>
std::vector<ServedCase> CasesWhere(Predicate predicate) {
  std::vector<ServedCase> found;
  for (const ServedCase& served : Cases()) {
    if (predicate(served)) found.push_back(served);
  }
  return found;
}

}  // namespace

std::unique_ptr<ServedWorld> ServedCase::MakeWorld(int ranks) const {
  const RunShape shape{.ranks = ranks, .servers = servers};
  if (library.empty()) {
    const bool bounded = mode == UpdateMode::kBounded;
    return std::make_unique<FakeWorld>(ServedSettings{.world_size = ranks,
                                                      .servers = servers,
                                                      .mode = mode,
                                                      .staleness = bounded ? kFakeStaleness : 0,
                                                      .max_delay_us = 200});
  }
  const auto plugin = PluginUnderTest::Load(library);
  if (!plugin.ok()) {
    std::fprintf(stderr, "%s\n", plugin.status().message());
    return nullptr;
  }
  return std::make_unique<PluginWorld>(*plugin, shape, overrides);
}

std::vector<ServedCase> FakeCases() {
  std::vector<ServedCase> cases;
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kBounded, UpdateMode::kAsync}) {
    for (const int servers : {0, 2}) {
      cases.push_back({CaseName("fake", mode, servers), mode, servers, "", {}});
    }
  }
  return cases;
}

Result<std::vector<ServedCase>> CasesFromCommandLine(int* argc, char** argv) {
  Library library;
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    const Status status = name.rfind("--gtest", 0) == 0
                              ? Status::Error(StatusCode::kUnsupported, "not ours")
                              : TakeArgument(name, value, &library);
    if (status.ok()) continue;
    if (status.code() == StatusCode::kInvalidArgument) return status.WithContext("%s", argv[i]);
    argv[kept++] = argv[i];
  }
  *argc = kept;
  if (library.path.empty()) return CasesOfThisBuild();
  if (library.modes.empty()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "no mode of %s: give --sync=OPTIONS, --bounded=OPTIONS or --async=OPTIONS",
                         library.path.c_str());
  }
  return CasesOfLibrary(library);
}

void SetCases(std::vector<ServedCase> cases) {
  Cases() = std::move(cases);
}

std::vector<ServedCase> AllServedCases() {
  return Cases();
}

std::vector<ServedCase> CasesOf(UpdateMode mode) {
  return CasesWhere([mode](const ServedCase& served) { return served.mode == mode; });
}

std::vector<ServedCase> AsyncCases() {
  return CasesWhere([](const ServedCase& served) { return served.mode != UpdateMode::kSync; });
}

std::vector<ServedCase> CasesThatOutliveRanks() {
  return CasesWhere([](const ServedCase& served) {
    const bool outlive = served.servers > 0 || served.library.empty();
    return served.mode != UpdateMode::kSync && outlive;
  });
}

std::vector<ServedCase> CasesWithServers() {
  return CasesWhere([](const ServedCase& served) { return served.servers > 0; });
}

}  // namespace engine::test
