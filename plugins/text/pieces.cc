#include "pieces.h"

#include <dlfcn.h>

#include "kit/file.h"
#include "sentencepiece_call.h"

namespace engine::text {
namespace {

// The library stays loaded: SentencePiece has threads' and static data.
Result<SentencePieceFunction*> Load() {
  Dl_info self{};
  void* library = nullptr;
  if (dladdr(reinterpret_cast<const void*>(&Load), &self) != 0) {
    const std::string path(self.dli_fname);
    const std::string beside = path.substr(0, path.rfind('/') + 1) + kSentencePieceLibrary;
    library = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_DEEPBIND);
  }
  void* const function = library ? dlsym(library, kSentencePieceFunction) : nullptr;
  if (function) return reinterpret_cast<SentencePieceFunction*>(function);
  return Status::Error(StatusCode::kUnsupported,
                       "data.text.sentencepiece: no SentencePiece here (libsentencepiece-dev when "
                       "the engine is built): %s",
                       dlerror());
}

void Append(void* context, size_t text, const int32_t* pieces, size_t count) {
  std::vector<int32_t>& to = static_cast<Pieces*>(context)->of[text];
  to.insert(to.end(), pieces, pieces + count);
}

}  // namespace

Result<Pieces> SplitIntoPieces(const std::string& model_path,
                               const std::vector<std::string_view>& texts) {
  ENGINE_ASSIGN_OR_RETURN(const kit::MappedFile file, kit::MappedFile::Open(model_path));
  ENGINE_ASSIGN_OR_RETURN(SentencePieceFunction* const split, Load());
  Pieces pieces{.of = std::vector<std::vector<int32_t>>(texts.size())};
  SentencePieceCall call{
      .model = {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
      .texts = texts.data(),
      .text_count = texts.size(),
      .context = &pieces,
      .sink = Append,
      .vocabulary = 0,
      .message = {}};
  if (!split(&call)) {
    return Status::Error(StatusCode::kBadData, "%s: not a model of SentencePiece: %s",
                         model_path.c_str(), call.message);
  }
  pieces.vocabulary = call.vocabulary;
  return pieces;
}

}  // namespace engine::text
