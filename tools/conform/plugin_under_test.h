// A library that is judged: what its file says, the values of its options, and objects of it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/plugins/catalog.h"
#include "core/plugin/create_object.h"
#include "tools/conform/inner_host.h"
#include "tools/conform/memory_host.h"

namespace engine::conform {

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

// The published values of one scope (empty: the plugin's own, else an op's attributes), with some
// of them given as text. The text of a value that cannot be parsed counts as none; layers, which
// only a configuration has, are one of 10 units.
class OptionValues {
 public:
  using Overrides = std::map<std::string, std::string>;

  OptionValues(std::span<const OptionSpec> specs, std::string_view scope,
               const Overrides& overrides);
  OptionValues(const OptionValues&) = delete;
  OptionValues& operator=(const OptionValues&) = delete;

  Options options() const { return Options(values_); }
  const std::vector<plugin::OwnedOption>& owned() const { return owned_; }

 private:
  std::vector<plugin::OwnedOption> owned_;
  const std::vector<OptionValue> values_;  // views of owned_
};

class PluginUnderTest {
 public:
  // Reads the file and runs none of its code.
  static Result<PluginUnderTest> Load(const std::string& path);

  const plugins::PluginFile& file() const { return file_; }
  const std::string& name() const { return file_.name; }
  std::span<const OptionSpec> option_specs() const { return file_.options; }
  const std::vector<std::string>& ops() const { return file_.ops; }

  // "KEY=VALUE", a value for every object from now on. kConfig names the option and what is wrong.
  Status Set(const std::string& argument);
  // kConfig names an option without default that was not set.
  Status CheckRequired() const;
  // For one of the options that name a plugin.
  void AddInner(const PluginUnderTest& inner) { inner_.push_back(inner.Choice({})); }

  // T is the interface of the plugin's kind. `overrides` come before what was set.
  template <typename T>
  Result<std::unique_ptr<T>> Create(Host& host, OptionValues::Overrides overrides = {}) const {
    const plugin::PluginChoice choice = Choice(std::move(overrides));
    if constexpr (std::is_same_v<T, Object>) {
      return plugin::CreateObject(choice, OfferInner(choice, host));
    } else {
      return plugin::Create<T>(choice, OfferInner(choice, host));
    }
  }
  // Of its own options.
  std::vector<plugin::OwnedOption> Values(OptionValues::Overrides overrides = {}) const {
    overrides.insert(set_.begin(), set_.end());
    return OptionValues(file_.options, "", overrides).owned();
  }

 private:
  explicit PluginUnderTest(plugins::PluginFile file) : file_(std::move(file)) {}

  plugin::PluginChoice Choice(OptionValues::Overrides overrides) const {
    return {file_, Values(std::move(overrides)), "", inner_};
  }

  plugins::PluginFile file_;
  OptionValues::Overrides set_;
  std::vector<plugin::PluginChoice> inner_;
};

// The object of a plugin, for a world of one unless there is a host.
template <typename T>
std::unique_ptr<T> CreateFrom(const std::string& path, const OptionValues::Overrides& options = {},
                              Host* host = nullptr) {
  static MemoryHost single_host;
  const PluginUnderTest plugin = Must(PluginUnderTest::Load(path));
  return Must(plugin.Create<T>(host ? *host : single_host, options));
}

}  // namespace engine::conform
