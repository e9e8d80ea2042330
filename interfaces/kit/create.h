// The descriptor of a plugin and its create function. Compiled into the plugin that includes it and no
// part of the ABI.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "engine/device.h"
#include "engine/plugin.h"

namespace engine::kit {

// The descriptor of a plugin without ops, which works on the device of others.
template <size_t kOptions = 0>
constexpr auto DescribePlugin(PluginKind kind, FixedString<32> name, FixedString<32> version,
                              FixedString<160> doc, CreateFunction create,
                              const std::array<OptionSpec, kOptions>& options = {}) noexcept {
  return engine::DescribePlugin(
      {.name = name, .version = version, .kind = kind, .doc = doc, .create = create}, NoOps(),
      options);
}

// *out = a Made of `args`, or kResourceExhausted.
template <typename Made, typename... Args>
Status Make(Object** out, Args&&... args) noexcept {
  *out = new (std::nothrow) Made(std::forward<Args>(args)...);
  if (*out) return {};
  return Status::Error(StatusCode::kResourceExhausted, "no memory for the object of a plugin");
}

// For PluginInfo::create: a Made of host and options, or of what its constructor takes of the two.
template <typename Made>
StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  if constexpr (std::is_constructible_v<Made, Host&, const Options&>) {
    return Make<Made>(out, host, options);
  } else if constexpr (std::is_constructible_v<Made, const Options&>) {
    return Make<Made>(out, options);
  } else {
    return Make<Made>(out);
  }
}

// The same for one that works in CPU memory: kUnsupported where the ops of the run do not.
template <typename Made>
StatusValue CreateOnCpu(Host& host, const Options& options, Object** out) noexcept {
  if (const Device* device = host.device(); device && std::strcmp(device->type(), "cpu") != 0) {
    return Status::Error(StatusCode::kUnsupported,
                         "works in CPU memory, but the ops run on '%s': choose a plugin for that "
                         "device",
                         device->type());
  }
  return Create<Made>(host, options, out);
}

}  // namespace engine::kit
