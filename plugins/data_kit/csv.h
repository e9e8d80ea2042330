// Tables as text (RFC 4180), with any delimiter of one character.
//
//   file   = [BOM] record{LF or CRLF}        empty lines are left out
//   record = field{delimiter}
//   field  = '"' (any character but '"', or '""'){} '"'  |  any but delimiter and LF, without the
//            spaces around it
//
// Files are mapped; what is kept is where each record begins, 8 bytes a record.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/status.h"
#include "kit/file.h"

namespace engine::data_kit {

// The fields of one record: valid as long as the file and this.
class CsvRecord {
 public:
  const std::vector<std::string_view>& fields() const { return fields_; }

 private:
  friend class CsvFile;
  std::vector<std::string_view> fields_;
  std::string unquoted_;  // fields with '""' in them
};

class CsvFile {
 public:
  // kMissingInput; kBadData, with file and line, for a quoted field without end and for a file
  // without records.
  static Result<CsvFile> Open(const std::string& path, char delimiter);

  const std::string& path() const { return path_; }
  int64_t records() const { return static_cast<int64_t>(begins_.size()); }
  std::string_view bytes() const {
    return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()};
  }

  // kBadData, with file, line and column, for text between a closing quote and the delimiter.
  // [any-thread]
  Status Split(int64_t record, CsvRecord* out) const;

  // An error of column `column` (from 0) of a record; `name` is the column's or empty. Lines and
  // columns are counted from 1, as editors do.
  Status BadField(int64_t record, size_t column, std::string_view name,
                  const std::string& what) const;

 private:
  CsvFile(std::string path, kit::MappedFile file, char delimiter)
      : path_(std::move(path)), file_(std::move(file)), delimiter_(delimiter) {}
  int64_t LineAt(size_t offset) const;

  std::string path_;
  kit::MappedFile file_;
  char delimiter_;
  std::vector<uint64_t> begins_;
};

// A finite number with nothing but spaces around it.
std::optional<double> ParseNumber(std::string_view text);

// "0.485, 0.456": the numbers of an option that is a text. kConfig with `key`.
Result<std::vector<double>> ParseNumbers(const char* key, std::string_view text);

// "age, income": the words of an option, without the spaces around them.
std::vector<std::string> SplitWords(std::string_view text);

// The one character that an option `delimiter` stands for: itself, or "tab". kConfig with `key`.
Result<char> ParseDelimiter(const char* key, std::string_view text);

}  // namespace engine::data_kit
