// From a file to an object.
#pragma once

#include <memory>

#include "core/plugin/plugin_set.h"
#include "engine/host.h"
#include "engine/status.h"

namespace engine::plugin {

// Loads the library of `choice`, unless it is loaded already, and makes its object. `host` must
// outlive the object; `watch`, if not null, knows of the call. kPlugin names file and cause; the plugin's own error has its name in front,
// and what it says of an option the place of its block. [any-thread]
Result<std::unique_ptr<Object>> CreateObject(const PluginChoice& choice, Host& host,
                                             base::CallWatch* watch = nullptr);

// The same; by the contract of its kind the object is a T. Type information is private to each
// library, so no dynamic_cast could tell.
template <typename T>
Result<std::unique_ptr<T>> Create(const PluginChoice& choice, Host& host,
                                  base::CallWatch* watch = nullptr) {
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Object> object, CreateObject(choice, host, watch));
  return std::unique_ptr<T>(static_cast<T*>(object.release()));
}

}  // namespace engine::plugin
