// The text of a configuration and the places in it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"

namespace engine::config {

// Places are byte offsets; kNowhere stands for a place that is not in the text.
class SourceText {
 public:
  static constexpr size_t kNowhere = std::string::npos;

  SourceText(std::string name, std::string text);

  const std::string& text() const { return text_; }

  // The offset of a place that Protobuf counts from 0, with tabs that reach to multiples of 8.
  size_t OffsetOf(int line, int column) const;
  // The last `word` that ends at or before `offset`, or the first that begins at or after it;
  // `offset` itself when there is none.
  size_t LastBefore(std::string_view word, size_t offset) const;
  size_t FirstAfter(std::string_view word, size_t offset) const;

  // "FILE:LINE"; "FILE" for kNowhere.
  std::string Place(size_t offset) const;

  // "FILE:LINE:COLUMN: sentence", the line and a caret below the column. Lines and columns count
  // from 1, columns in characters of UTF-8. kNowhere is the beginning of the text.
  Status Error(StatusCode code, size_t offset, std::string_view sentence) const;

 private:
  size_t LineOf(size_t offset) const;  // from 0

  std::string name_, text_;
  std::vector<size_t> line_begins_;
};

// Nothing that a terminal would interpret, or that would end a line.
std::string Printable(std::string_view text);

}  // namespace engine::config
