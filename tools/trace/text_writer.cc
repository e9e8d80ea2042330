#include "tools/trace/text_writer.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace engine {

void TextWriter::Print(const char* format, ...) {
  // Numbers and short words only, so this is always enough.
  char text[512];
  va_list args;
  va_start(args, format);
  const int size = std::vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  ENGINE_CHECK(size >= 0 && static_cast<size_t>(size) < sizeof(text), "%s", format);
  buffer_.append(text, static_cast<size_t>(size));
}

void TextWriter::Quoted(std::string_view text) {
  using nlohmann::json;
  buffer_ += json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

void TextWriter::FlushIfLarge() {
  constexpr size_t kLarge = 64 << 10;
  if (buffer_.size() >= kLarge) Flush();
}

Status TextWriter::Finish() {
  Flush();
  return status_;
}

void TextWriter::Flush() {
  if (status_.ok()) status_ = sink_(buffer_);
  buffer_.clear();
}

}  // namespace engine
