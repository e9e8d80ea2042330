#include "data_kit/csv.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cmath>

namespace engine::data_kit {
namespace {

// What some programs write before UTF-8.
constexpr std::string_view kBom = "\xef\xbb\xbf";

// Without the spaces around it, which the carriage return of CRLF is one of.
std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

// Where the quoted field that begins at `begin` ends, behind its closing quote; npos: it does not.
size_t QuotedEnd(std::string_view text, size_t begin) {
  for (size_t i = begin + 1;;) {
    i = text.find('"', i);
    if (i == text.npos) return i;
    if (i + 1 == text.size() || text[i + 1] != '"') return i + 1;
    i += 2;
  }
}

// Where the field from `begin` on ends: at a delimiter, a line feed or the end.
size_t PlainEnd(std::string_view text, size_t begin, char delimiter) {
  size_t i = begin;
  while (i < text.size() && text[i] != delimiter && text[i] != '\n') ++i;
  return i;
}

// Where the record ends, at a line feed or the end; npos: inside of a quoted field.
size_t RecordEnd(std::string_view text, size_t begin, char delimiter) {
  for (size_t i = begin;; ++i) {
    if (i < text.size() && text[i] == '"') i = QuotedEnd(text, i);
    if (i == text.npos) return i;
    i = PlainEnd(text, i, delimiter);
    if (i == text.size() || text[i] == '\n') return i;
  }
}

}  // namespace

Result<CsvFile> CsvFile::Open(const std::string& path, char delimiter) {
  ENGINE_ASSIGN_OR_RETURN(kit::MappedFile mapped, kit::MappedFile::Open(path));
  CsvFile file(path, std::move(mapped), delimiter);
  const std::string_view text = file.bytes();
  // Line feeds inside of quotes are no ends, so the whole file is looked through.
  for (size_t at = text.starts_with(kBom) ? kBom.size() : 0; at < text.size();) {
    const size_t end = RecordEnd(text, at, delimiter);
    if (end == text.npos) {
      return Status::Error(StatusCode::kBadData,
                           "%s: line %" PRId64 ": a quoted field that does not end", path.c_str(),
                           file.LineAt(at));
    }
    const std::string_view line = text.substr(at, end - at);
    if (!line.empty() && line != "\r") file.begins_.push_back(at);
    at = end + 1;
  }
  if (!file.begins_.empty()) return file;
  return Status::Error(StatusCode::kBadData, "%s: there are no records", path.c_str());
}

// Quoted fields were looked through by Open, so that QuotedEnd finds an end.
Status CsvFile::Split(int64_t record, CsvRecord* out) const {
  const std::string_view text = bytes();
  const auto number = static_cast<size_t>(record);
  const size_t next = number + 1 < begins_.size() ? begins_[number + 1] : text.size();
  out->fields_.clear();
  out->unquoted_.clear();
  out->unquoted_.reserve(next - begins_[number]);  // views of it stay good
  for (size_t i = begins_[number];; ++i) {
    if (i < text.size() && text[i] == '"') {
      const size_t end = QuotedEnd(text, i);
      std::string_view content = text.substr(i + 1, end - i - 2);
      if (content.find('"') != content.npos) {
        const size_t begin = out->unquoted_.size();  // one of each two quotes
        for (size_t c = 0; c < content.size(); c += content[c] == '"' ? 2 : 1) {
          out->unquoted_ += content[c];
        }
        content = std::string_view(out->unquoted_).substr(begin);
      }
      out->fields_.push_back(content);
      i = end;
      if (i < text.size() && text[i] == '\r') ++i;
      if (i < text.size() && text[i] != delimiter_ && text[i] != '\n') {
        return BadField(record, out->fields_.size() - 1, "", "text after the closing quote");
      }
    } else {
      const size_t end = PlainEnd(text, i, delimiter_);
      out->fields_.push_back(Trimmed(text.substr(i, end - i)));
      i = end;
    }
    if (i >= text.size() || text[i] == '\n') return {};
  }
}

Status CsvFile::BadField(int64_t record, size_t column, std::string_view name,
                         const std::string& what) const {
  const std::string title = name.empty() ? "" : std::string(" '").append(name).append("'");
  return Status::Error(StatusCode::kBadData, "%s: line %" PRId64 ", column %zu%s: %s",
                       path_.c_str(), LineAt(begins_[static_cast<size_t>(record)]), column + 1,
                       title.c_str(), what.c_str());
}

// For messages alone: it counts from the beginning of the file.
int64_t CsvFile::LineAt(size_t offset) const {
  const std::string_view before = bytes().substr(0, offset);
  return 1 + std::count(before.begin(), before.end(), '\n');
}

std::optional<double> ParseNumber(std::string_view text) {
  text = Trimmed(text);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return {};
  return number;
}

std::vector<std::string> SplitWords(std::string_view text) {
  std::vector<std::string> words;
  while (!Trimmed(text).empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    words.emplace_back(Trimmed(text.substr(0, comma)));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return words;
}

Result<std::vector<double>> ParseNumbers(const char* key, std::string_view text) {
  std::vector<double> numbers;
  for (const std::string& word : SplitWords(text)) {
    const std::optional<double> number = ParseNumber(word);
    if (!number) {
      return Status::Error(StatusCode::kConfig,
                           "%s: '%s' is no number; give a list as \"0.5, 0.4\"", key, word.c_str());
    }
    numbers.push_back(*number);
  }
  return numbers;
}

Result<char> ParseDelimiter(const char* key, std::string_view text) {
  if (text == "tab") return '\t';
  if (text.size() == 1 && text != "\"" && text != "\n") return text[0];
  return Status::Error(StatusCode::kConfig, "%s must be one character, or \"tab\"", key);
}

}  // namespace engine::data_kit
