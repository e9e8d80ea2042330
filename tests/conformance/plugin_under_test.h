// Loads one plugin the short way, without the core, so that a conformance suite judges the library
// and nothing else.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/plugin.h"
#include "tests/support/memory_host.h"

namespace engine::test {

// What a test cannot go on without: an error fails the test and leaves it.
inline void Must(const Status& status) {
  if (status.ok()) return;
  ADD_FAILURE() << status.message();
  throw std::runtime_error("the test cannot go on");
}
template <typename T>
T Must(Result<T> result) {
  Must(result.status());
  return std::move(*result);
}

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

// The published values of one scope (empty: the plugin's own, else an op's attributes), with some
// of them given as text.
class OptionValues {
 public:
  using Overrides = std::map<std::string, std::string>;

  OptionValues(std::span<const OptionSpec> specs, std::string_view scope,
               const Overrides& overrides) {
    for (const OptionSpec& spec : specs) {
      if (spec.scope.view() != scope) continue;
      const auto found = overrides.find(std::string(spec.name.view()));
      texts_.emplace_back(found != overrides.end() ? found->second : spec.default_value.view());
      const std::string& text = texts_.back();
      OptionValue value{.name = spec.name.view(), .type = spec.type};
      if (spec.type == OptionType::kBool) value.integer = text == "true";
      if (spec.type == OptionType::kInt) value.integer = std::strtoll(text.c_str(), nullptr, 10);
      if (spec.type == OptionType::kFloat) value.number = std::strtod(text.c_str(), nullptr);
      if (spec.type == OptionType::kInts) {
        std::istringstream list(text);
        std::vector<int64_t>& numbers = lists_.emplace_back();
        for (std::string part; std::getline(list, part, ',');) numbers.push_back(std::stoll(part));
        value.integers = numbers;
      } else if (spec.type >= OptionType::kString) {
        value.string = text;
      }
      values_.push_back(value);
    }
  }
  OptionValues(const OptionValues&) = delete;
  OptionValues& operator=(const OptionValues&) = delete;

  Options options() const { return Options(values_); }

 private:
  std::deque<std::string> texts_;  // a deque does not move its elements
  std::deque<std::vector<int64_t>> lists_;
  std::vector<OptionValue> values_;
};

// A loaded library. It stays loaded: an object may outlive this.
class PluginUnderTest {
 public:
  static Result<PluginUnderTest> Load(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return Status::Error(StatusCode::kPlugin, "%s", dlerror());
    const void* symbol = dlsym(library, "engine_plugin_v1");
    if (!symbol) {
      return Status::Error(StatusCode::kPlugin, "%s: no symbol engine_plugin_v1", path.c_str());
    }
    const auto* header = static_cast<const PluginHeader*>(symbol);
    if (header->magic != kPluginMagic || header->fingerprint != ENGINE_ABI_FINGERPRINT) {
      return Status::Error(StatusCode::kPlugin, "%s was built against other headers", path.c_str());
    }
    return PluginUnderTest(header);
  }

  const PluginHeader& header() const { return *header_; }
  std::string name() const { return std::string(header_->name.view()); }
  std::span<const OptionSpec> option_specs() const {
    return {At<OptionSpec>(header_->option_offset), header_->option_count};
  }
  std::span<const OpName> ops() const {
    return {At<OpName>(header_->op_offset), header_->op_count};
  }

  // T is the interface of the plugin's kind.
  template <typename T>
  Result<std::unique_ptr<T>> Create(Host& host,
                                    const OptionValues::Overrides& overrides = {}) const {
    const OptionValues values(option_specs(), "", overrides);
    Object* object = nullptr;
    ENGINE_RETURN_IF_ERROR(header_->create(host, values.options(), &object));
    // Not dynamic_cast: type information is private to each library.
    return std::unique_ptr<T>(static_cast<T*>(object));
  }

 private:
  explicit PluginUnderTest(const PluginHeader* header) : header_(header) {}
  template <typename T>
  const T* At(uint32_t offset) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(header_) + offset);
  }

  const PluginHeader* header_;
};

// Makes plugins of this build, with their defaults and the whole world, for one that stands around
// them.
class TestInnerPlugins final : public InnerPlugins {
 public:
  explicit TestInnerPlugins(Host& host) : host_(host) {}
  Status CreateCommunicator(const InnerPlugin& inner, std::span<const int32_t>,
                            Communicator** out) noexcept override {
    return Create(inner, out);
  }
  Status CreateScheduler(const InnerPlugin& inner, Scheduler** out) noexcept override {
    return Create(inner, out);
  }

 private:
  template <typename T>
  Status Create(const InnerPlugin& inner, T** out) {
    ENGINE_ASSIGN_OR_RETURN(const PluginUnderTest plugin,
                            PluginUnderTest::Load(PluginPath(std::string(inner.plugin))));
    ENGINE_ASSIGN_OR_RETURN(auto made, plugin.Create<T>(host_));
    *out = made.release();
    return {};
  }

  Host& host_;
};

// The object of a plugin, for a world of one unless there is a host.
template <typename T>
std::unique_ptr<T> CreateFrom(const std::string& path, const OptionValues::Overrides& options = {},
                              Host* host = nullptr) {
  static MemoryHost single_host;
  const PluginUnderTest plugin = Must(PluginUnderTest::Load(path));
  return Must(plugin.Create<T>(host ? *host : single_host, options));
}

inline void ExpectDescribed(const std::string& path, PluginKind kind) {
  const PluginUnderTest plugin = Must(PluginUnderTest::Load(path));
  EXPECT_EQ(plugin.header().kind, kind);
  EXPECT_TRUE(path.ends_with("/libengine_" + plugin.name() + ".so")) << path;
  EXPECT_NE(plugin.header().doc.view(), "");
}

}  // namespace engine::test
