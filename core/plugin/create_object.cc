#include "core/plugin/create_object.h"

#include <vector>

namespace engine::plugin {

Result<std::unique_ptr<Object>> CreateObject(const PluginChoice& choice, Host& host,
                                             base::CallWatch* watch) {
  const base::OpenCall open(watch, choice.entry.Title(), "its create function");
  ENGINE_ASSIGN_OR_RETURN(const CreateFunction create, choice.entry.load(choice.entry));
  const char* const name = choice.entry.name.c_str();
  const std::vector<OptionValue> options = Views(choice.options);
  Object* object = nullptr;
  const Status status = create(host, Options(options), &object);
  if (!status.ok()) {
    const bool at_block = status.code() == StatusCode::kConfig && !choice.origin.empty();
    const Status named = Answer(status).WithContext("plugin '%s'", name);
    return at_block ? named.WithContext("%s", choice.origin.c_str()) : named;
  }
  if (object != nullptr) return std::unique_ptr<Object>(object);
  return Status::Error(StatusCode::kPlugin,
                       "plugin '%s': its create function reported success and made no object",
                       name);
}

}  // namespace engine::plugin
