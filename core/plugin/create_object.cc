#include "core/plugin/create_object.h"

#include "engine/ext/accelerator.h"
#include "engine/ext/class_names.h"
#include "engine/ext/grouped_transfers.h"
#include "engine/ext/link_cost.h"
#include "engine/ext/parameter_server.h"
#include "engine/ext/recorded_transfers.h"
#include "engine/ext/row_table.h"
#include "engine/ext/saved_state.h"
#include "engine/ext/shared_memory.h"
#include "engine/ext/sub_groups.h"
#include "engine/ext/wire_format.h"
#include "engine/ext/wire_progress.h"

namespace engine::plugin {

Result<std::unique_ptr<Object>> CreateObject(const PluginChoice& choice, Host& host,
                                             base::CallWatch* watch) {
  const base::OpenCall open(watch, choice.entry.Title(), "its create function");
  ENGINE_ASSIGN_OR_RETURN(const CreateFunction create, choice.entry.load(choice.entry));
  const char* const name = choice.entry.name.c_str();
  Object* object = nullptr;
  const Status status(create(host, Options(Views(choice.options)), &object));
  if (!status.ok()) {
    const bool at_block = status.code() == StatusCode::kConfig && !choice.origin.empty();
    const Status named = Answer(status).WithContext("plugin '%s'", name);
    return at_block ? named.WithContext("%s", choice.origin.c_str()) : named;
  }
  if (object == nullptr) {
    return Status::Error(StatusCode::kPlugin,
                         "plugin '%s': its create function reported success and made no object",
                         name);
  }
  std::unique_ptr<Object> made(object);
  ENGINE_RETURN_IF_ERROR(CheckExtensions(*made, choice.entry.Title()));
  return made;
}

Status CheckExtensions(const Object& object, const std::string& title) {
  std::string wrong;
  const auto check = [&]<typename... X>() {
    ((object.Query(X::kId, 0) && !Query<X>(object) ? void(wrong = X::kId) : void()), ...);
  };
  check.operator()<Accelerator, ClassNames, GroupedTransfers, LinkModel, ParameterClient,
                   ParameterServer, RecordedTransfers, RowTable, SavedState, SharedMemory,
                   SpanUpdates, SubGroups, WireFormat, WireProgress>();
  if (wrong.empty()) return {};
  return Status::Error(StatusCode::kPlugin,
                       "%s offers %s with another layout than this engine has; rebuild it",
                       title.c_str(), wrong.c_str());
}

}  // namespace engine::plugin
