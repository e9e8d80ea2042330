#include "token_file.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "data_kit/npy.h"
#include "kit/file.h"

namespace engine::tokens {
namespace {

using data_kit::ElementType;

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

Result<TokenFile> TokenFile::Open(const std::string& path, Format format) {
  ENGINE_ASSIGN_OR_RETURN(kit::MappedFile mapped, kit::MappedFile::Open(path));
  const auto kept = std::make_shared<const kit::MappedFile>(std::move(mapped));
  const std::span<const uint8_t> bytes = kept->bytes();
  TokenFile file;
  file.path_ = path;
  file.memory_ = kept;
  const Kind* const kind = FindKind(bytes);
  if (format != Format::kGuess && (kind != nullptr || data_kit::IsNpy(bytes))) {
    return Status::Error(StatusCode::kBadData,
                         "%s: a token file of llm.c or a .npy, not tokens alone: leave "
                         "data.tokens.format at \"guess\"",
                         path.c_str());
  }
  if (format != Format::kGuess) {
    file.type_.size_bytes = format == Format::kUint16 ? 2 : 4;
    if (bytes.size() % file.type_.size_bytes != 0) {
      return Status::Error(StatusCode::kBadData, "%s: %zu bytes are no whole number of tokens",
                           path.c_str(), bytes.size());
    }
    file.tokens_ = bytes;
  } else if (data_kit::IsNpy(bytes)) {
    ENGINE_ASSIGN_OR_RETURN(const data_kit::NumberArray array,
                            data_kit::ParseNpy(path, bytes, kept));
    if (!array.type.is_integer()) {
      return Status::Error(StatusCode::kBadData, "%s: floats are no tokens", path.c_str());
    }
    file.type_ = array.type;
    file.tokens_ = array.elements;
  } else if (kind != nullptr) {
    ENGINE_RETURN_IF_ERROR(CheckHeader(path, bytes, *kind));
    file.type_.size_bytes = kind->token_bytes;
    file.tokens_ = bytes.subspan(kHeaderBytes);
  } else {
    return Status::Error(StatusCode::kBadData,
                         "%s: neither a token file of llm.c, which begins with %d or %d, nor a "
                         ".npy; if it is tokens alone, as nanoGPT's, set data.tokens.format to "
                         "\"uint16\" or \"uint32\"",
                         path.c_str(), kKinds[0].magic, kKinds[1].magic);
  }
  file.header_bytes_ = file.tokens_.data() - bytes.data();
  return file;
}

Status TokenFile::Read(int64_t begin, int64_t count, int32_t vocabulary, int32_t* tokens) const {
  constexpr int64_t kChunk = 512;
  int64_t chunk[kChunk];
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t size = std::min(kChunk, count - done);
    data_kit::ReadElements(type_, BytesOf(begin + done, size).data(), size, chunk);
    for (int64_t i = 0; i < size; ++i) {
      tokens[done + i] = static_cast<int32_t>(chunk[i]);
      if (chunk[i] >= 0 && chunk[i] < vocabulary) [[likely]]
        continue;
      const int64_t token = begin + done + i;
      return Status::Error(StatusCode::kBadData,
                           "%s: token %" PRId64 ", at offset %" PRId64 ", is %" PRId64
                           "; with data.tokens.vocabulary %d they are 0 to %d",
                           path_.c_str(), token, header_bytes_ + token * type_.size_bytes, chunk[i],
                           vocabulary, vocabulary - 1);
    }
  }
  return {};
}

std::span<const uint8_t> TokenFile::BytesOf(int64_t begin, int64_t count) const {
  return tokens_.subspan(static_cast<size_t>(begin * type_.size_bytes),
                         static_cast<size_t>(count * type_.size_bytes));
}

}  // namespace engine::tokens
