#include "token_file.h"

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <span>
#include <utility>

#include "data_kit/npy.h"
#include "kit/file.h"

namespace engine::tokens {
namespace {

using data_kit::ElementType;
using data_kit::NumberArray;

constexpr size_t kHeaderBytes = 256 * 4;

constexpr struct Kind {
  int32_t magic, version;
  uint8_t token_bytes;  // 0: multiple-choice examples, as of HellaSwag
} kKinds[] = {{20240520, 1, 2}, {20240801, 7, 4}, {20240522, 1, 0}};

// Null: not of llm.c.
const Kind* FindKind(std::span<const uint8_t> file) {
  int64_t magic = 0;
  if (file.size() >= 4) {
    data_kit::ReadElements({ElementType::Kind::kSigned, 4}, file.data(), 1, &magic);
  }
  const auto* const found = std::ranges::find(kKinds, magic, &Kind::magic);
  return found == std::end(kKinds) ? nullptr : found;
}

// The number of tokens comes from the file: it is believed only when exactly so many bytes follow.
Status CheckHeader(const std::string& path, std::span<const uint8_t> file, const Kind& kind) {
  if (kind.token_bytes == 0) {
    return Status::Error(StatusCode::kBadData,
                         "%s: multiple-choice examples of llm.c, not tokens to train on",
                         path.c_str());
  }
  if (file.size() < kHeaderBytes) {
    return Status::Error(StatusCode::kBadData,
                         "%s: %zu bytes are too few for a token file of llm.c; is it cut short?",
                         path.c_str(), file.size());
  }
  int64_t header[3];
  data_kit::ReadElements({ElementType::Kind::kSigned, 4}, file.data(), 3, header);
  if (header[1] != kind.version) {
    return Status::Error(StatusCode::kBadData,
                         "%s: version %" PRId64
                         " of the token files of llm.c with magic %d; only version %d is read",
                         path.c_str(), header[1], kind.magic, kind.version);
  }
  const auto there = static_cast<int64_t>(file.size() - kHeaderBytes);
  if (there == header[2] * kind.token_bytes) return {};
  return Status::Error(StatusCode::kBadData,
                       "%s: the header announces %" PRId64 " tokens, and %" PRId64
                       " bytes follow it; is the file cut short?",
                       path.c_str(), header[2], there);
}

}  // namespace

Result<NumberArray> OpenTokens(const std::string& path, Format format) {
  ENGINE_ASSIGN_OR_RETURN(kit::MappedFile mapped, kit::MappedFile::Open(path));
  const auto kept = std::make_shared<const kit::MappedFile>(std::move(mapped));
  NumberArray file{.name = path, .elements = kept->bytes(), .memory = kept};
  const Kind* const kind = FindKind(file.elements);
  const bool is_npy = data_kit::IsNpy(file.elements);
  if (format != Format::kGuess && (kind != nullptr || is_npy)) {
    return Status::Error(StatusCode::kBadData,
                         "%s: a token file of llm.c or a .npy, not tokens alone: leave "
                         "data.tokens.format at \"guess\"",
                         path.c_str());
  }
  if (format != Format::kGuess) {
    file.type.size_bytes = format == Format::kUint16 ? 2 : 4;
    if (file.elements.size() % file.type.size_bytes != 0) {
      return Status::Error(StatusCode::kBadData, "%s: %zu bytes are no whole number of tokens",
                           path.c_str(), file.elements.size());
    }
  } else if (is_npy) {
    ENGINE_ASSIGN_OR_RETURN(file, data_kit::ParseNpy(path, file.elements, kept));
    if (!file.type.is_integer()) {
      return Status::Error(StatusCode::kBadData, "%s: floats are no tokens", path.c_str());
    }
  } else if (kind != nullptr) {
    ENGINE_RETURN_IF_ERROR(CheckHeader(path, file.elements, *kind));
    file.type.size_bytes = kind->token_bytes;
    file.elements = file.elements.subspan(kHeaderBytes);
  } else {
    return Status::Error(StatusCode::kBadData,
                         "%s: neither a token file of llm.c, which begins with %d or %d, nor a "
                         ".npy; if it is tokens alone, as nanoGPT's, set data.tokens.format to "
                         "\"uint16\" or \"uint32\"",
                         path.c_str(), kKinds[0].magic, kKinds[1].magic);
  }
  file.shape = {static_cast<int64_t>(file.elements.size()) / file.type.size_bytes};
  return file;
}

Status ReadTokens(const NumberArray& file, int64_t begin, int64_t count, int32_t vocabulary,
                  int32_t* tokens) {
  constexpr int64_t kChunk = 512;
  int64_t chunk[kChunk];
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t size = std::min(kChunk, count - done);
    file.Read(begin + done, 0, size, chunk);
    for (int64_t i = 0; i < size; ++i) {
      tokens[done + i] = static_cast<int32_t>(chunk[i]);
      if (chunk[i] >= 0 && chunk[i] < vocabulary) [[likely]]
        continue;
      return Status::Error(
          StatusCode::kBadData,
          "%s: token %" PRId64 " is %" PRId64 "; with data.tokens.vocabulary %d they are 0 to %d",
          file.name.c_str(), begin + done + i, chunk[i], vocabulary, vocabulary - 1);
    }
  }
  return {};
}

}  // namespace engine::tokens
