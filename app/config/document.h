// A parsed configuration that remembers where each value came from.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/config/problems.h"
#include "app/config/source_text.h"
#include "engine/status.h"

namespace engine::config {

// One message of a document. Valid while the document lives and does not change.
struct Cursor {
  const google::protobuf::Message* message = nullptr;  // of its defaults if it is not set
  const google::protobuf::TextFormat::ParseInfoTree* tree = nullptr;  // null if not from the text
  std::string path;                                                   // "train.learning_rate"
  size_t offset = SourceText::kNowhere;                               // of its key in the text

  const google::protobuf::FieldDescriptor* Field(const std::string& name) const {
    return message->GetDescriptor()->FindFieldByName(name);
  }
  bool Has(const google::protobuf::FieldDescriptor* field) const {
    return field->is_repeated() ? Size(field) > 0
                                : message->GetReflection()->HasField(*message, field);
  }
  int Size(const google::protobuf::FieldDescriptor* field) const {
    return message->GetReflection()->FieldSize(*message, field);
  }
};

class Document {
 public:
  using Message = google::protobuf::Message;
  using Field = google::protobuf::FieldDescriptor;

  enum class UnknownKeys { kRefuse, kSkip };

  // Unknown keys and wrong values are left out, and are `problems`, with place, line and caret. kConfig,
  // with those before, where the text cannot be understood any further. Blocks may be nested 64 deep.
  static Result<Document> Parse(std::shared_ptr<const SourceText> source, const Message& prototype,
                                UnknownKeys unknown, Problems* problems);

  // `--set argument`: "train.steps=100". A repeated key takes a list with commas; strings need no
  // quotes. kConfig: "--set ARGUMENT: sentence".
  Status Override(const std::string& argument);

  // Replaces a repeated string. `flags[i]` is what element i came from, "--plugins x"; empty: what
  // it replaces.
  void SetList(const std::string& name, const std::vector<std::string>& values,
               const std::vector<std::string>& flags);
  std::vector<std::string> List(const std::string& name) const;

  const Message& message() const { return *message_; }
  Cursor Root() const;
  // `index` is that of a repeated field, else -1.
  Cursor Child(const Cursor& parent, const Field* field, int index = -1) const;
  // The block `key` of the configuration.
  Cursor At(const std::string& key) const;

  // "--set", "--plugins", "FILE:LINE" or "default".
  std::string Origin(const Cursor& owner, const Field* field, int index = -1) const;

  // An error with the value of `field`, or with its absence: then the place is that of its block.
  Status Error(const Cursor& owner, const Field* field, int index, const std::string& sentence,
               StatusCode code = StatusCode::kConfig) const;
  // An error with a whole block.
  Status Error(const Cursor& block, const std::string& sentence) const;

 private:
  explicit Document(std::shared_ptr<const SourceText> source) : source_(std::move(source)) {}
  // The flag that a value came from, or "".
  std::string FlagOf(const Cursor& owner, const Field* field, int index) const;
  size_t OffsetOf(const Cursor& owner, const Field* field, int index) const;

  std::shared_ptr<const SourceText> source_;
  std::shared_ptr<Message> message_;
  std::shared_ptr<google::protobuf::TextFormat::ParseInfoTree> tree_;
  std::map<std::string, std::string> flags_;  // path, with "[i]" of an element -> "--set a=b"
};

}  // namespace engine::config
