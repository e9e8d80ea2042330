// Text as the pieces of a SentencePiece model (Kudo, Richardson: SentencePiece, 2018).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"

namespace engine::text {

struct Pieces {
  int64_t vocabulary = 0;                // of the model: tokens are less than this
  std::vector<std::vector<int32_t>> of;  // of each text
};

// Texts are cut where a line ends, about every 64 KiB, so that memory stays small; as at the
// beginning of a text, a model may put a space there. kMissingInput and kBadData for the model;
// kUnsupported in a build without the library.
Result<Pieces> SplitIntoPieces(const std::string& model_path,
                               const std::vector<std::string_view>& texts);

}  // namespace engine::text
