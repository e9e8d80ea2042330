#include "app/config/override.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "app/config/parse_error.h"
#include "app/plugins/words.h"

namespace engine::config {
namespace {

namespace pb = google::protobuf;

class IgnoreErrors final : public pb::io::ErrorCollector {
  void AddError(int, pb::io::ColumnNumber, const std::string&) override {}
};

Status Refuse(const std::string& sentence) {
  return Status::Error(StatusCode::kConfig, "%s", sentence.c_str());
}

const char* TypeName(const pb::FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case pb::FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    default:
      return "an integer in range";
  }
}

// Sets a singular field, or appends to a repeated one.
Status SetValue(const pb::FieldDescriptor* field, std::string value, pb::Message* message) {
  const pb::Reflection* reflection = message->GetReflection();
  const bool quoted = value.size() >= 2 && (value[0] == '"' || value[0] == '\'');
  if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING && !quoted) {
    if (field->is_repeated()) {
      reflection->AddString(message, field, std::move(value));
    } else {
      reflection->SetString(message, field, std::move(value));
    }
    return {};
  }
  if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_ENUM) {
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return std::toupper(c); });
  }
  IgnoreErrors ignore;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&ignore);
  if (parser.ParseFieldValueFromString(value, field, message)) return {};
  if (field->enum_type() != nullptr) return Refuse(NoSuchWord(value, *field->enum_type()));
  return Refuse("'" + value + "' is not " + TypeName(*field));
}

std::string OnlyInFile(const pb::FieldDescriptor& field) {
  return "'" + field.name() + "' is a list of blocks, which only a file can give";
}

Status SetField(const pb::FieldDescriptor* field, const std::string& value, pb::Message* message) {
  if (field->message_type() != nullptr && field->is_repeated()) return Refuse(OnlyInFile(*field));
  if (field->message_type() != nullptr) {
    return Refuse("'" + field->name() + "' is a block; name one of its keys: " +
                  plugins::Join(KeysOf(*field->message_type())));
  }
  message->GetReflection()->ClearField(message, field);
  if (!field->is_repeated()) return SetValue(field, value, message);
  if (value.empty()) return {};
  for (std::string& part : plugins::Split(value, ',')) {
    ENGINE_RETURN_IF_ERROR(SetValue(field, std::move(part), message));
  }
  return {};
}

}  // namespace

Result<std::string> ApplyOverride(const std::string& argument, pb::Message* root) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) return Refuse("there is no '='; write key=value");
  const std::string key = argument.substr(0, equals);
  const std::vector<std::string> names = plugins::Split(key, '.');
  pb::Message* message = root;
  for (size_t i = 0; i < names.size(); ++i) {
    const pb::FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(names[i]);
    if (field == nullptr) return Refuse(UnknownKey(names[i], *message->GetDescriptor()));
    if (i + 1 == names.size()) {
      ENGINE_RETURN_IF_ERROR(SetField(field, argument.substr(equals + 1), message));
      break;
    }
    if (field->message_type() == nullptr) return Refuse("'" + names[i] + "' has no keys");
    if (field->is_repeated()) return Refuse(OnlyInFile(*field));
    message = message->GetReflection()->MutableMessage(message, field);
  }
  return key;
}

}  // namespace engine::config
