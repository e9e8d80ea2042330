#include "app/config/document.h"

#include <google/protobuf/io/tokenizer.h>

#include <algorithm>
#include <cctype>

#include "app/config/override.h"
#include "app/config/parse_error.h"

namespace engine::config {
namespace {

namespace pb = google::protobuf;

constexpr int kDeepestNesting = 64;

struct ParseError {
  int line = -1, column = -1;
  std::string message;
};

// Keys that the schema does not have are warnings to a parser that may skip them. Of the errors the first
// counts: those that follow are often its consequences.
class Collector final : public pb::io::ErrorCollector {
 public:
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    if (error.line < 0) error = {line, column, message};
  }
  void AddWarning(int line, pb::io::ColumnNumber column, const std::string& message) override {
    unknown.push_back({line, column, message});
  }

  ParseError error;
  std::vector<ParseError> unknown;
};

bool IsOfWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Where `text` has, from `at` on or backwards from it, something else than blanks.
size_t SkipBlanks(const std::string& text, size_t at) {
  return std::min(text.find_first_not_of(" \t", at), text.size());
}
size_t SkipBlanksBackwards(const std::string& text, size_t at) {
  while (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '\t')) --at;
  return at;
}

// Blanks out `key: value`, at whose key or value `at` is; false if it is at none, or at a block or list.
bool BlankEntry(size_t at, std::string* text) {
  size_t colon = std::min(at, text->size());
  while (colon < text->size() && IsOfWord((*text)[colon])) ++colon;
  colon = SkipBlanks(*text, colon);
  if (colon == text->size() || (*text)[colon] != ':') {
    const size_t behind = SkipBlanksBackwards(*text, std::min(at, text->size()));
    if (behind == 0 || (*text)[behind - 1] != ':') return false;
    colon = behind - 1;
  }
  size_t begin = SkipBlanksBackwards(*text, colon);
  while (begin > 0 && IsOfWord((*text)[begin - 1])) --begin;
  const size_t value = SkipBlanks(*text, colon + 1);
  const bool quoted = value < text->size() && ((*text)[value] == '"' || (*text)[value] == '\'');
  const std::string ends = quoted ? std::string(1, (*text)[value]) + "\n" : " \t\r\n{}[]<>;,#";
  const size_t end = text->find_first_of(ends, value + (quoted ? 1 : 0));
  const size_t behind = std::min(end, text->size()) + (quoted ? 1 : 0);
  if (end == value || behind > text->size() || (quoted && (*text)[end] == '\n')) return false;
  text->replace(begin, behind - begin, behind - begin, ' ');
  return true;
}

std::string PathOf(const Cursor& owner, const pb::FieldDescriptor* field) {
  return owner.path.empty() ? field->name() : owner.path + "." + field->name();
}

std::string Indexed(const std::string& path, int index) {
  return index < 0 ? path : path + "[" + std::to_string(index) + "]";
}

}  // namespace

// A value that cannot be read is blanked out, with its key, and what is left is read again, so that places
// stay what they are.
Result<Document> Document::Parse(std::shared_ptr<const SourceText> source, const Message& prototype,
                                 UnknownKeys unknown, Problems* problems) {
  Document document(std::move(source));
  const SourceText& whole = *document.source_;
  const auto translate = [&](const ParseError& error) {
    return TranslateParseError(whole, whole.OffsetOf(error.line, error.column), error.message,
                               *prototype.GetDescriptor());
  };
  std::map<size_t, Status> wrong;  // by place
  std::string text = whole.text();
  for (;;) {
    document.message_.reset(prototype.New());
    document.tree_ = std::make_shared<pb::TextFormat::ParseInfoTree>();
    Collector found;
    pb::TextFormat::Parser parser;
    parser.RecordErrorsTo(&found);
    parser.WriteLocationsTo(document.tree_.get());
    parser.SetRecursionLimit(kDeepestNesting);
    parser.AllowUnknownField(true);
    const bool parsed = parser.ParseFromString(text, document.message_.get());
    for (const ParseError& key : found.unknown) {
      if (unknown == UnknownKeys::kSkip) break;
      const TranslatedError error = translate(key);
      wrong.emplace(error.offset, error.status);
    }
    if (parsed) break;
    const TranslatedError error = translate(found.error);
    wrong.emplace(error.offset, error.status);
    if (!BlankEntry(error.offset, &text)) {
      for (const auto& [place, status] : wrong) problems->LeaveOut(status);
      return problems->ToStatus();
    }
  }
  for (const auto& [place, status] : wrong) problems->LeaveOut(status);
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
