// From a file to an object.
#pragma once

#include <memory>
#include <string>

#include "core/plugin/plugin_set.h"
#include "engine/host.h"

namespace engine::plugin {

// Loads the library of `choice`, unless it is loaded already, and makes its object. `host` must
// outlive the object; `watch`, if not null, knows of the call. kPlugin names file and cause; the plugin's own error has its name in front,
// and what it says of an option the place of its block. [any-thread]
Result<std::unique_ptr<Object>> CreateObject(const PluginChoice& choice, Host& host,
                                             base::CallWatch* watch = nullptr);

// kPlugin when an extension of `object`, which is of plugin `title`, has another layout than here: it
// would be taken for one that is not there.
Status CheckExtensions(const Object& object, const std::string& title);

// The same, of the role T.
template <typename T>
Result<std::unique_ptr<T>> Create(const PluginChoice& choice, Host& host,
                                  base::CallWatch* watch = nullptr) {
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Object> object, CreateObject(choice, host, watch));
  T* const role = Query<T>(*object);
  if (role != nullptr) {
    (void)object.release();
    return std::unique_ptr<T>(role);
  }
  return Status::Error(StatusCode::kPlugin, "%s made an object that is no %s of this engine",
                       choice.entry.Title().c_str(), std::string(T::kId).c_str());
}

}  // namespace engine::plugin
