#include "app/config/document.h"

#include <google/protobuf/io/tokenizer.h>

#include <algorithm>

#include "app/config/override.h"
#include "app/config/parse_error.h"

namespace engine::config {
namespace {

namespace pb = google::protobuf;

constexpr int kDeepestNesting = 64;

// Keeps the first error: those that follow are often its consequences.
class FirstError final : public pb::io::ErrorCollector {
 public:
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    if (line_ >= 0) return;
    line_ = line;
    column_ = column;
    message_ = message;
  }
  Status ToStatus(const SourceText& source, const pb::Descriptor& root) const {
    return TranslateParseError(source, source.OffsetOf(line_, column_), message_, root);
  }

 private:
  int line_ = -1, column_ = -1;
  std::string message_;
};

std::string PathOf(const Cursor& owner, const pb::FieldDescriptor* field) {
  return owner.path.empty() ? field->name() : owner.path + "." + field->name();
}

std::string Indexed(const std::string& path, int index) {
  return index < 0 ? path : path + "[" + std::to_string(index) + "]";
}

}  // namespace

Result<Document> Document::Parse(std::shared_ptr<const SourceText> source, const Message& prototype,
                                 UnknownKeys unknown) {
  Document document(std::move(source));
  document.message_.reset(prototype.New());
  document.tree_ = std::make_shared<pb::TextFormat::ParseInfoTree>();
  FirstError errors;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(document.tree_.get());
  parser.SetRecursionLimit(kDeepestNesting);
  parser.AllowUnknownField(unknown == UnknownKeys::kSkip);
  if (!parser.ParseFromString(document.source_->text(), document.message_.get())) {
    return errors.ToStatus(*document.source_, *prototype.GetDescriptor());
  }
  return document;
}

Status Document::Override(const std::string& argument) {
  const auto path = ApplyOverride(argument, message_.get());
  if (!path.ok()) return path.status().WithContext("--set %s", argument.c_str());
  flags_[*path] = "--set " + argument;
  return {};
}

void Document::SetList(const std::string& name, const std::vector<std::string>& values,
                       const std::vector<std::string>& flags) {
  const pb::Reflection* reflection = message_->GetReflection();
  const Field* field = message_->GetDescriptor()->FindFieldByName(name);
  reflection->ClearField(message_.get(), field);
  for (size_t i = 0; i < values.size(); ++i) {
    reflection->AddString(message_.get(), field, values[i]);
    if (!flags[i].empty()) flags_[Indexed(name, static_cast<int>(i))] = flags[i];
  }
}

std::vector<std::string> Document::List(const std::string& name) const {
  const pb::Reflection* reflection = message_->GetReflection();
  const Field* field = message_->GetDescriptor()->FindFieldByName(name);
  std::vector<std::string> values;
  for (int i = 0; i < reflection->FieldSize(*message_, field); ++i) {
    values.push_back(reflection->GetRepeatedString(*message_, field, i));
  }
  return values;
}

Cursor Document::Root() const {
  return {message_.get(), tree_.get(), "", SourceText::kNowhere};
}

Cursor Document::Child(const Cursor& parent, const Field* field, int index) const {
  const pb::Reflection* reflection = parent.message->GetReflection();
  Cursor child;
  child.path = Indexed(PathOf(parent, field), index);
  child.message = index < 0 ? &reflection->GetMessage(*parent.message, field)
                            : &reflection->GetRepeatedMessage(*parent.message, field, index);
  const bool set = index >= 0 || reflection->HasField(*parent.message, field);
  if (set && parent.tree != nullptr) child.tree = parent.tree->GetTreeForNested(field, index);
  child.offset = OffsetOf(parent, field, index);
  return child;
}

Cursor Document::At(const std::string& key) const {
  const Cursor root = Root();
  return Child(root, root.Field(key));
}

size_t Document::OffsetOf(const Cursor& owner, const Field* field, int index) const {
  if (owner.tree == nullptr) return owner.offset;
  auto place = owner.tree->GetLocation(field, index);
  size_t offset = source_->OffsetOf(place.line, place.column);
  // Protobuf knows only where a list in brackets begins.
  for (int i = index; offset == SourceText::kNowhere && i > 0;) {
    place = owner.tree->GetLocation(field, --i);
    offset = source_->OffsetOf(place.line, place.column);
  }
  if (offset == SourceText::kNowhere) return owner.offset;
  if (index < 0 || field->cpp_type() != Field::CPPTYPE_STRING || index >= owner.Size(field)) {
    return offset;
  }
  const std::string value =
      owner.message->GetReflection()->GetRepeatedString(*owner.message, field, index);
  return source_->FirstAfter('"' + value + '"', offset);
}

std::string Document::FlagOf(const Cursor& owner, const Field* field, int index) const {
  const std::string path = PathOf(owner, field);
  auto it = flags_.find(Indexed(path, index));
  if (it == flags_.end()) it = flags_.find(path);
  return it == flags_.end() ? "" : it->second;
}

std::string Document::Origin(const Cursor& owner, const Field* field, int index) const {
  const std::string flag = FlagOf(owner, field, index);
  if (!flag.empty()) return flag.substr(0, flag.find(' '));
  if (owner.tree == nullptr || (index < 0 && !owner.Has(field))) return "default";
  return source_->Place(OffsetOf(owner, field, index));
}

Status Document::Error(const Cursor& owner, const Field* field, int index,
                       const std::string& sentence, StatusCode code) const {
  const std::string flag = FlagOf(owner, field, index);
  if (!flag.empty()) return Status::Error(code, "%s: %s", flag.c_str(), sentence.c_str());
  return source_->Error(code, OffsetOf(owner, field, index), sentence);
}

Status Document::Error(const Cursor& block, const std::string& sentence) const {
  return source_->Error(StatusCode::kConfig, block.offset, sentence);
}

}  // namespace engine::config
