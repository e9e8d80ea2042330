// Text that goes to a sink in pieces of about 64 KiB.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tools/trace/trace_format.h"

namespace engine::trace {

class TextWriter {
 public:
  explicit TextWriter(const TextSink& sink) : sink_(sink) {}

  void Text(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kPieceBytes) Flush();
  }
  // On one line. What is not UTF-8 is replaced.
  void Json(const nlohmann::ordered_json& json) {
    Text(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  // Hands on the rest. The first error of the sink, after which nothing was handed on.
  Status Finish() {
    Flush();
    return status_;
  }

 private:
  static constexpr size_t kPieceBytes = 64 << 10;

  void Flush() {
    if (status_.ok()) status_ = sink_(buffer_);
    buffer_.clear();
  }

  const TextSink& sink_;
  std::string buffer_;
  Status status_;
};

}  // namespace engine::trace
