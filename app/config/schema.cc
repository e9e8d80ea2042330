#include "app/config/schema.h"

#include <google/protobuf/descriptor.pb.h>

#include "app/config/engine.pb.h"
#include "app/plugins/option_value.h"

namespace engine::config {
namespace {

namespace pb = google::protobuf;

// engine.proto stays below; Protobuf reserves 19000 .. 19999, far above any catalog.
constexpr int kFirstAddedNumber = 1000;

// The only warnings of Protobuf here are about the JSON names of similar keys, which are not used.
class SilentCollector final : public pb::DescriptorPool::ErrorCollector {
 public:
  void AddError(const std::string&, const std::string& element, const pb::Message*, ErrorLocation,
                const std::string& message) override {
    errors_ += element + ": " + message + "; ";
  }
  const std::string& errors() const { return errors_; }

 private:
  std::string errors_;
};

pb::DescriptorProto* FindMessage(const char* name, pb::FileDescriptorProto* file) {
  for (pb::DescriptorProto& message : *file->mutable_message_type()) {
    if (message.name() == name) return &message;
  }
  return nullptr;
}

pb::FieldDescriptorProto::Type FieldType(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return pb::FieldDescriptorProto::TYPE_BOOL;
    case OptionType::kInt:
      return pb::FieldDescriptorProto::TYPE_INT64;
    case OptionType::kInts:
      return pb::FieldDescriptorProto::TYPE_INT64;
    case OptionType::kFloat:
      return pb::FieldDescriptorProto::TYPE_DOUBLE;
    case OptionType::kLayers:
      return pb::FieldDescriptorProto::TYPE_MESSAGE;
    default:
      return pb::FieldDescriptorProto::TYPE_STRING;
  }
}

bool IsList(OptionType type) {
  return type == OptionType::kInts || type == OptionType::kLayers;
}

// In the notation of Protobuf, which would read an int with a leading zero as octal.
std::string DefaultText(const OptionSpec& spec) {
  const bool is_text = FieldType(spec.type) == pb::FieldDescriptorProto::TYPE_STRING;
  return is_text ? std::string(spec.default_value.view())
                 : plugins::ToText(plugins::DefaultOf(spec));
}

// The words of an enum, in a message of their own: so that two may have one word.
void AddWords(const OptionSpec& option, const std::string& type, pb::DescriptorProto* block,
              pb::FieldDescriptorProto* field) {
  pb::DescriptorProto* scope = block->add_nested_type();
  scope->set_name("Words_" + field->name());
  pb::EnumDescriptorProto* words = scope->add_enum_type();
  words->set_name("Word");
  for (const std::string& choice : plugins::Choices(option)) {
    pb::EnumValueDescriptorProto* word = words->add_value();
    word->set_name(choice);
    word->set_number(words->value_size() - 1);
  }
  field->set_type(pb::FieldDescriptorProto::TYPE_ENUM);
  field->set_type_name(type + "." + scope->name() + ".Word");
}

// Options of datasets and models are in a oneof of their block: one of them is chosen.
void AddToKinds(pb::DescriptorProto* message, pb::FieldDescriptorProto* field) {
  if (message->oneof_decl_size() == 0) message->add_oneof_decl()->set_name("kind");
  field->set_oneof_index(0);
}

// A message `type` with a field per option, and a field `name` of that type in `owner`.
pb::FieldDescriptorProto* AddBlock(const std::string& type, const std::string& name,
                                   const std::vector<const OptionSpec*>& options, const char* owner,
                                   pb::FileDescriptorProto* file) {
  const std::string package = "." + file->package() + ".";
  pb::DescriptorProto* block = file->add_message_type();
  block->set_name(type);
  for (const OptionSpec* option : options) {
    pb::FieldDescriptorProto* field = block->add_field();
    field->set_name(std::string(option->name.view()));
    field->set_number(block->field_size());
    field->set_label(IsList(option->type) ? pb::FieldDescriptorProto::LABEL_REPEATED
                                          : pb::FieldDescriptorProto::LABEL_OPTIONAL);
    field->set_type(FieldType(option->type));
    if (option->type == OptionType::kLayers) field->set_type_name(package + "Layer");
    if (plugins::IsWrittenBare(*option)) AddWords(*option, package + type, block, field);
    if (!plugins::IsRequired(*option) && !IsList(option->type)) {
      field->set_default_value(DefaultText(*option));
    }
  }
  pb::DescriptorProto* message = FindMessage(owner, file);
  pb::FieldDescriptorProto* field = message->add_field();
  field->set_name(name);
  field->set_number(kFirstAddedNumber + message->field_size());
  field->set_label(pb::FieldDescriptorProto::LABEL_OPTIONAL);
  field->set_type(pb::FieldDescriptorProto::TYPE_MESSAGE);
  field->set_type_name(package + type);
  return field;
}

// The message that the block of a plugin stands in.
const pb::Descriptor& OwnerOf(PluginKind kind) {
  return kind == PluginKind::kDataset ? *proto::Data::descriptor()
         : kind == PluginKind::kModel ? *proto::Model::descriptor()
                                      : *proto::Config::descriptor();
}

}  // namespace

Status CheckNotAKey(const std::string& name) {
  for (const pb::Descriptor* block : {proto::Config::descriptor(), proto::Data::descriptor(),
                                      proto::Model::descriptor(), proto::Layer::descriptor()}) {
    if (block->FindFieldByName(name) == nullptr) continue;
    return Status::Error(StatusCode::kInvalidArgument,
                         "'%s' is a key of the configuration: choose another name", name.c_str());
  }
  return {};
}

Result<std::shared_ptr<Schema>> Schema::Build(const std::vector<plugin::PluginEntry>& chosen,
                                              const std::vector<plugin::PluginEntry>& others) {
  std::shared_ptr<Schema> schema(new Schema);
  schema->plugins_ = chosen;
  schema->chosen_count_ = chosen.size();
  schema->plugins_.insert(schema->plugins_.end(), others.begin(), others.end());
  pb::FileDescriptorProto file;
  proto::Config::descriptor()->file()->CopyTo(&file);
  for (size_t i = 0; i < schema->plugins_.size(); ++i) {
    ENGINE_RETURN_IF_ERROR(schema->AddPlugin(i, &file));
  }
  pb::FileDescriptorProto options;  // which `file` imports
  pb::FieldOptions::descriptor()->file()->CopyTo(&options);
  schema->pool_.BuildFile(options);
  SilentCollector errors;
  const pb::FileDescriptor* built = schema->pool_.BuildFileCollectingErrors(file, &errors);
  if (built == nullptr) {
    return Status::Error(StatusCode::kInternal, "the schema of the plugins is inconsistent: %s",
                         errors.errors().c_str());
  }
  schema->factory_ = std::make_unique<pb::DynamicMessageFactory>(&schema->pool_);
  schema->prototype_ = schema->factory_->GetPrototype(built->FindMessageTypeByName("Config"));
  return schema;
}

Status Schema::AddPlugin(size_t index, pb::FileDescriptorProto* file) {
  const plugin::PluginEntry& entry = plugins_[index];
  const pb::Descriptor& owner = OwnerOf(entry.kind);
  const bool taken = owner.FindFieldByName(entry.name) != nullptr;
  if (taken && IsChosen(entry)) {
    return Status::Error(StatusCode::kPlugin,
                         "plugin '%s' (%s) has the name of a key of the configuration; rename it",
                         entry.name.c_str(), entry.path.c_str());
  }
  if (taken || !plugin_fields_.emplace(entry.name, index).second) return {};
  pb::FieldDescriptorProto* field =
      AddBlock("PluginOptions_" + entry.name, entry.name, plugins::OptionsOf(entry.options, ""),
               owner.name().c_str(), file);
  if (entry.kind > PluginKind::kHook) AddToKinds(FindMessage(owner.name().c_str(), file), field);
  for (const std::string& op : entry.ops) ENGINE_RETURN_IF_ERROR(AddOp(index, op, file));
  return {};
}

Status Schema::AddOp(size_t index, const std::string& op, pb::FileDescriptorProto* file) {
  const plugin::PluginEntry& entry = plugins_[index];
  const bool taken = proto::Layer::descriptor()->FindFieldByName(op) != nullptr;
  if (taken && IsChosen(entry)) {
    return Status::Error(StatusCode::kPlugin,
                         "plugin '%s' (%s) offers an op '%s', which is a key of every layer; "
                         "rename the op",
                         entry.name.c_str(), entry.path.c_str(), op.c_str());
  }
  if (taken || !op_fields_.emplace(op, index).second) return {};
  AddBlock("OpAttributes_" + op, op, plugins::OptionsOf(entry.options, op), "Layer", file);
  return {};
}

std::vector<std::string> Schema::ChosenOps() const {
  std::vector<std::string> ops;
  for (size_t i = 0; i < chosen_count_; ++i) {
    ops.insert(ops.end(), plugins_[i].ops.begin(), plugins_[i].ops.end());
  }
  return ops;
}

const plugin::PluginEntry* Schema::PluginOf(const pb::FieldDescriptor* field) const {
  if (field->number() < kFirstAddedNumber) return nullptr;
  const bool is_op = field->containing_type()->name() == proto::Layer::descriptor()->name();
  const auto& index = is_op ? op_fields_ : plugin_fields_;
  return &plugins_[index.at(field->name())];
}

}  // namespace engine::config
