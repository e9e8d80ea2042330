// The schema of a configuration: engine.proto, a block per plugin in Config, Data or Model, and a
// block per op in Layer.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "app/plugins/catalog.h"
#include "engine/status.h"

namespace engine::config {

// kInvalidArgument when a plugin cannot be called `name`, because that is a key of engine.proto in a block where
// those of plugins or ops stand.
Status CheckNotAKey(const std::string& name);

class Schema {
 public:
  // `chosen` are the plugins of the run, `others` those that were found besides. Of two plugins
  // with one name, or two that offer one op, the first counts, the chosen ones before the others.
  // kPlugin when a chosen plugin or one of its ops has the name of a key of engine.proto.
  static Result<std::shared_ptr<Schema>> Build(const std::vector<plugin::PluginEntry>& chosen,
                                               const std::vector<plugin::PluginEntry>& others);

  const google::protobuf::Message& prototype() const { return *prototype_; }

  // The plugin that a field of Config, Data or Model belongs to, or that offers the op of a field of Layer; null
  // for the keys of engine.proto.
  const plugin::PluginEntry* PluginOf(const google::protobuf::FieldDescriptor* field) const;
  // Of an entry that PluginOf gave. A dataset and a model are chosen where their block stands, and
  // others where an option of a chosen plugin names them.
  bool IsChosen(const plugin::PluginEntry& entry) const {
    return &entry < plugins_.data() + chosen_count_ || entry.kind > PluginKind::kHook ||
           inner_.contains(entry.name);
  }
  void AddInner(const plugin::PluginEntry& entry) { inner_.insert(entry.name); }
  // The ops of the chosen plugins.
  std::vector<std::string> ChosenOps() const;

 private:
  Schema() = default;
  Status AddPlugin(size_t index, google::protobuf::FileDescriptorProto* file);
  Status AddOp(size_t index, const std::string& op, google::protobuf::FileDescriptorProto* file);

  std::vector<plugin::PluginEntry> plugins_;  // the chosen ones first
  size_t chosen_count_ = 0;
  std::set<std::string> inner_;
  std::map<std::string, size_t> plugin_fields_, op_fields_;  // name -> index in plugins_
  google::protobuf::DescriptorPool pool_;
  std::unique_ptr<google::protobuf::DynamicMessageFactory> factory_;
  const google::protobuf::Message* prototype_ = nullptr;
};

}  // namespace engine::config
