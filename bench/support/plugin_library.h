// A plugin, loaded the short way: for programs of their own that measure one library.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plugin.h"

namespace engine::bench {

// Option values as text, by name.
using Overrides = std::map<std::string, std::string>;

// The published values of one scope (empty: the plugin's own, else an op's attributes).
class OptionTexts {
 public:
  OptionTexts(std::span<const OptionSpec> specs, std::string_view scope,
              const Overrides& overrides) {
    for (const OptionSpec& spec : specs) {
      if (spec.scope.view() != scope) continue;
      const auto found = overrides.find(std::string(spec.name.view()));
      const std::string& text =
          texts_.emplace_back(found != overrides.end() ? found->second : spec.default_value.view());
      values_.push_back({.name = spec.name.view(),
                         .type = spec.type,
                         .integer = spec.type == OptionType::kBool
                                        ? text == "true"
                                        : std::strtoll(text.c_str(), nullptr, 10),
                         .number = std::strtod(text.c_str(), nullptr),
                         .string = text});
    }
  }
  OptionTexts(const OptionTexts&) = delete;
  OptionTexts& operator=(const OptionTexts&) = delete;

  Options options() const { return Options(values_); }

 private:
  std::deque<std::string> texts_;  // a deque does not move its elements
  std::vector<OptionValue> values_;
};

// It stays loaded: an object may outlive this.
class PluginLibrary {
 public:
  static Result<PluginLibrary> Load(const std::string& path) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return Status::Error(StatusCode::kPlugin, "%s", dlerror());
    const auto* header = static_cast<const PluginHeader*>(dlsym(library, "engine_plugin_v1"));
    if (!header || header->magic != kPluginMagic || header->fingerprint != ENGINE_ABI_FINGERPRINT) {
      return Status::Error(StatusCode::kPlugin,
                           "%s is no plugin, or was built against other headers", path.c_str());
    }
    return PluginLibrary(header);
  }

  std::span<const OptionSpec> option_specs() const {
    const char* const begin = reinterpret_cast<const char*>(header_) + header_->option_offset;
    return {reinterpret_cast<const OptionSpec*>(begin), header_->option_count};
  }

  // T is the interface of the plugin's kind.
  template <typename T>
  Result<std::unique_ptr<T>> Create(Host& host, const Overrides& overrides = {}) const {
    const OptionTexts values(option_specs(), "", overrides);
    Object* object = nullptr;
    ENGINE_RETURN_IF_ERROR(header_->create(host, values.options(), &object));
    // Not dynamic_cast: type information is private to each library.
    return std::unique_ptr<T>(static_cast<T*>(object));
  }

 private:
  explicit PluginLibrary(const PluginHeader* header) : header_(header) {}

  const PluginHeader* header_;
};

}  // namespace engine::bench
