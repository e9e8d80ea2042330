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

void Append(void* context, const int32_t* pieces, size_t count) {
  auto* const to = static_cast<std::vector<int32_t>*>(context);
  to->insert(to->end(), pieces, pieces + count);
}

}  // namespace

Result<Pieces> SplitIntoPieces(const std::string& model_path,
                               const std::vector<std::string_view>& texts) {
  ENGINE_ASSIGN_OR_RETURN(const kit::MappedFile file, kit::MappedFile::Open(model_path));
  ENGINE_ASSIGN_OR_RETURN(SentencePieceFunction* const split, Load());
  Pieces pieces;
  for (const std::string_view text : texts) {
    SentencePieceCall call{.model = reinterpret_cast<const char*>(file.bytes().data()),
                           .model_bytes = file.bytes().size(),
                           .text = text.data(),
                           .text_bytes = text.size(),
                           .context = &pieces.of.emplace_back(),
                           .sink = Append,
                           .vocabulary = 0,
                           .message = {}};
    if (!split(&call)) {
      return Status::Error(StatusCode::kBadData, "%s: not a model of SentencePiece: %s",
                           model_path.c_str(), call.message);
    }
    pieces.vocabulary = call.vocabulary;
  }
  return pieces;
}

}  // namespace engine::text
