// The one function of libtext_sentencepiece.so, which lies beside the plugin. Debian's
// SentencePiece has a protobuf of its own inside, of another version than the program's, and its
// symbols would be taken from the program's. So what uses it is a library of its own, which the
// plugin loads with RTLD_DEEPBIND: it sees its own libraries first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace engine::text {

struct SentencePieceCall {
  // The content of the file of a model, and texts.
  std::string_view model;
  const std::string_view* texts;
  size_t text_count;
  // Gets the pieces of text `text`, a part at a time.
  void* context;
  void (*sink)(void* context, size_t text, const int32_t* pieces, size_t count);
  // Out: the pieces that the model knows; or why it failed.
  int64_t vocabulary;
  char message[200];
};

// false: failed.
using SentencePieceFunction = bool(SentencePieceCall* call);
inline constexpr char kSentencePieceFunction[] = "engine_text_sentencepiece";
inline constexpr char kSentencePieceLibrary[] = "libtext_sentencepiece.so";

}  // namespace engine::text
