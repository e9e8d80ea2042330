#include "app/config/print.h"

#include <google/protobuf/text_format.h>

#include <utility>

#include "app/plugins/option_value.h"

namespace engine::config {
namespace {

namespace pb = google::protobuf;

class Printer {
 public:
  Printer(const Document& document, const Schema& schema, PrintForm form)
      : document_(document), schema_(schema), form_(form) {
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
    const std::string indent(static_cast<size_t>(2 * depth), ' ');
    if (form_ != PrintForm::kCompared) text_ += indent + field->name() + " {\n";
    const plugin::PluginEntry* plugin = schema_.PluginOf(field);
    const plugin::PluginEntry* const outer = plugin_;
    if (plugin != nullptr) plugin_ = plugin;
    unused_ += plugin != nullptr && !schema_.IsChosen(*plugin);
    PrintMessage(document_.Child(owner, field, index), depth + 1);
    unused_ -= plugin != nullptr && !schema_.IsChosen(*plugin);
    plugin_ = outer;
    if (form_ != PrintForm::kCompared) text_ += indent + "}\n";
  }

  // What is compared of a value; empty: nothing. Of a file that rank 0 writes, or whose contents are compared
  // elsewhere as those of plugins are, whether there is one: all ranks take part in it.
  std::string Compared(const std::string& path, const pb::FieldDescriptor* field,
                       const std::string& value) const {
    if (unused_ > 0 || path == "plugins" || path == "plugin_path" || path == "data.prefetch" ||
        (plugin_ != nullptr && plugins::DescribesHost(*plugin_, field->name()))) {
      return "";
    }
    const bool output = path.starts_with("output.") && field->type() == field->TYPE_STRING;
    if (!output && path != "train.init_from") return value;
    return value == "\"\"" ? "" : "a file";
  }

  void PrintValue(const Cursor& owner, const pb::FieldDescriptor* field, int index, int depth) {
    const bool set = index >= 0 || owner.Has(field);
    if (!set && (!field->has_default_value() || unused_ > 0)) return;
    std::string value;
    values_.PrintFieldValueToString(*owner.message, field, index, &value);
    if (form_ == PrintForm::kCompared) {
      const std::string path = (owner.path.empty() ? "" : owner.path + ".") + field->name();
      value = Compared(path, field, value);
      if (!value.empty()) text_ += path + ": " + value + "\n";
      return;
    }
    std::string line =
        std::string(static_cast<size_t>(2 * depth), ' ') + field->name() + ": " + value;
    if (form_ == PrintForm::kWithOrigins) {
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
  const PrintForm form_;
  pb::TextFormat::Printer values_;
  const plugin::PluginEntry* plugin_ = nullptr;  // to which the current line belongs, if any
  int unused_ = 0;  // blocks around the current line that belong to plugins that are not chosen
  std::string text_;
};

}  // namespace

std::string PrintDocument(const Document& document, const Schema& schema, PrintForm form) {
  return Printer(document, schema, form).Print();
}

}  // namespace engine::config
