#include "app/config/print.h"

#include <google/protobuf/text_format.h>

#include <utility>

namespace engine::config {
namespace {

namespace pb = google::protobuf;

class Printer {
 public:
  Printer(const Document& document, const Schema& schema, bool origins)
      : document_(document), schema_(schema), origins_(origins) {
    values_.SetUseUtf8StringEscaping(true);
  }

  std::string Print() {
    PrintMessage(document_.Root(), 0);
    return std::move(text_);
  }

 private:
  void PrintMessage(const Cursor& message, int depth) {
    const pb::Descriptor* type = message.message->GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const pb::FieldDescriptor* field = type->field(i);
      const int count = field->is_repeated() ? message.Size(field) : 1;
      for (int j = 0; j < count; ++j) {
        const int index = field->is_repeated() ? j : -1;
        if (field->message_type() == nullptr) {
          PrintValue(message, field, index, depth);
        } else if (field->is_repeated() || message.Has(field) || HasMeaningUnset(message, field)) {
          PrintBlock(message, field, index, depth);
        }
      }
    }
  }

  // Whether a block that is not given stands for its defaults. A member of a oneof, or an op of a
  // layer, stands for nothing then.
  bool HasMeaningUnset(const Cursor& owner, const pb::FieldDescriptor* field) const {
    if (field->containing_oneof() != nullptr || owner.message->GetDescriptor()->name() == "Layer") {
      return false;
    }
    const plugin::PluginEntry* plugin = schema_.PluginOf(field);
    return plugin == nullptr || (schema_.IsChosen(*plugin) && field->message_type()->field_count());
  }

  void PrintBlock(const Cursor& owner, const pb::FieldDescriptor* field, int index, int depth) {
    text_ += std::string(static_cast<size_t>(2 * depth), ' ') + field->name() + " {\n";
    const plugin::PluginEntry* plugin = schema_.PluginOf(field);
    unused_ += plugin != nullptr && !schema_.IsChosen(*plugin);
    PrintMessage(document_.Child(owner, field, index), depth + 1);
    unused_ -= plugin != nullptr && !schema_.IsChosen(*plugin);
    text_ += std::string(static_cast<size_t>(2 * depth), ' ') + "}\n";
  }

  void PrintValue(const Cursor& owner, const pb::FieldDescriptor* field, int index, int depth) {
    const bool set = index >= 0 || owner.Has(field);
    if (!set && (!field->has_default_value() || unused_ > 0)) return;
    std::string value;
    values_.PrintFieldValueToString(*owner.message, field, index, &value);
    std::string line =
        std::string(static_cast<size_t>(2 * depth), ' ') + field->name() + ": " + value;
    if (origins_) {
      constexpr size_t kCommentColumn = 40;
      if (line.size() < kCommentColumn) line.resize(kCommentColumn, ' ');
      // The name of a file may hold anything.
      line += "  # " + Printable(document_.Origin(owner, field, index));
      if (unused_ > 0) line += ", not used";
    }
    text_ += line + "\n";
  }

  const Document& document_;
  const Schema& schema_;
  const bool origins_;
  pb::TextFormat::Printer values_;
  int unused_ = 0;  // blocks around the current line that belong to plugins that are not chosen
  std::string text_;
};

}  // namespace

std::string PrintDocument(const Document& document, const Schema& schema, bool origins) {
  return Printer(document, schema, origins).Print();
}

}  // namespace engine::config
