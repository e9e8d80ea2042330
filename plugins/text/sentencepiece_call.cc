#include "sentencepiece_call.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

namespace engine::text {
namespace {

constexpr size_t kPartBytes = size_t{64} << 10;

bool Split(SentencePieceCall* call) {
  sentencepiece::SentencePieceProcessor model;
  auto status = model.LoadFromSerializedProto({call->model.data(), call->model.size()});
  call->vocabulary = status.ok() ? model.GetPieceSize() : 0;
  std::vector<int> pieces;
  for (size_t i = 0; i < call->text_count; ++i) {
    for (std::string_view text = call->texts[i]; status.ok() && !text.empty();) {
      const size_t end = std::min(text.find('\n', std::min(kPartBytes, text.size())), text.size());
      status = model.Encode({text.data(), end}, &pieces);
      call->sink(call->context, i, pieces.data(), pieces.size());
      text.remove_prefix(end);
    }
  }
  std::snprintf(call->message, sizeof call->message, "%s", status.ToString().c_str());
  return status.ok();
}

}  // namespace
}  // namespace engine::text

// Nothing that is thrown leaves a C function.
extern "C" __attribute__((visibility("default"))) bool engine_text_sentencepiece(
    engine::text::SentencePieceCall* call) {
  try {
    return engine::text::Split(call);
  } catch (const std::exception& failure) {
    std::snprintf(call->message, sizeof call->message, "%s", failure.what());
  } catch (...) {
    std::snprintf(call->message, sizeof call->message, "SentencePiece failed without a reason");
  }
  return false;
}
