// Text in pieces, with the little of JSON that a trace needs.
#pragma once

#include <string>
#include <string_view>

#include "tools/trace/trace_format.h"

namespace engine {

class TextWriter {
 public:
  explicit TextWriter(const TextSink& sink) : sink_(sink) {}

  __attribute__((format(printf, 2, 3))) void Print(const char* format, ...);
  void Text(std::string_view text) { buffer_ += text; }
  // As a JSON string, in quotes. What is not UTF-8 is replaced.
  void Quoted(std::string_view text);
  // Hands on what has gathered if it is much. After an error nothing is handed on.
  void FlushIfLarge();
  // Hands on the rest; the first error of the sink.
  Status Finish();

 private:
  void Flush();

  const TextSink& sink_;
  std::string buffer_;
  Status status_;
};

}  // namespace engine
