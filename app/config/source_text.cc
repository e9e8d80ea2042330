#include "app/config/source_text.h"

#include <algorithm>
#include <utility>

namespace engine::config {
namespace {

constexpr size_t kNowhere = SourceText::kNowhere;

bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuation(c); }));
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string printable(text);
  for (char& c : printable) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) c = '?';
  }
  return printable;
}

SourceText::SourceText(std::string name, std::string text)
    : name_(std::move(name)), text_(std::move(text)), line_begins_{0} {
  for (size_t at = 0; (at = text_.find('\n', at)) != std::string::npos;) {
    line_begins_.push_back(++at);
  }
}

size_t SourceText::OffsetOf(int line, int column) const {
  if (line < 0 || static_cast<size_t>(line) >= line_begins_.size()) return kNowhere;
  size_t offset = line_begins_[static_cast<size_t>(line)];
  for (int at = 0; at < column && offset < text_.size() && text_[offset] != '\n'; ++offset) {
    at = text_[offset] == '\t' ? at + 8 - at % 8 : at + 1;
  }
  return offset;
}

size_t SourceText::LastBefore(std::string_view word, size_t offset) const {
  if (offset == kNowhere || offset < word.size()) return offset;
  const size_t found = text_.rfind(word, offset - word.size());
  return found == std::string::npos ? offset : found;
}

size_t SourceText::FirstAfter(std::string_view word, size_t offset) const {
  if (offset == kNowhere) return offset;
  const size_t found = text_.find(word, offset);
  return found == std::string::npos ? offset : found;
}

size_t SourceText::LineOf(size_t offset) const {
  const auto after = std::upper_bound(line_begins_.begin(), line_begins_.end(), offset);
  return static_cast<size_t>(after - line_begins_.begin()) - 1;
}

std::string SourceText::Place(size_t offset) const {
  return offset == kNowhere ? name_ : name_ + ":" + std::to_string(LineOf(offset) + 1);
}

Status SourceText::Error(StatusCode code, size_t offset, std::string_view sentence) const {
  if (offset == kNowhere) offset = 0;
  const size_t line = LineOf(offset), begin = line_begins_[line];
  const size_t end = std::min(text_.find('\n', begin), text_.size());
  const std::string_view whole = std::string_view(text_).substr(begin, end - begin);
  const size_t column = std::min(offset - begin, whole.size());
  // Of a very long line only the neighbourhood is shown.
  constexpr size_t kBefore = 100, kShown = 160;
  size_t from = column > kBefore ? column - kBefore : 0;
  while (from > 0 && from < column && IsContinuation(whole[from])) ++from;
  size_t length = std::min(kShown, whole.size() - from);
  while (from + length < whole.size() && IsContinuation(whole[from + length])) ++length;
  std::string caret;
  for (const char c : whole.substr(from, column - from)) {
    if (!IsContinuation(c)) caret += c == '\t' ? '\t' : ' ';
  }
  return Status::Error(
      code, "%s: %.*s\n  %s\n  %s^",
      (Place(offset) + ":" + std::to_string(CountCharacters(whole.substr(0, column)) + 1)).c_str(),
      static_cast<int>(sentence.size()), sentence.data(),
      Printable(whole.substr(from, length)).c_str(), caret.c_str());
}

}  // namespace engine::config
