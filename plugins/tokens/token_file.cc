#include "token_file.h"

#include <algorithm>
#include <cinttypes>

namespace engine::tokens {
namespace {

constexpr int32_t kMagic = 20240520, kVersion = 1;
constexpr int32_t kMagicOfLlama3 = 20240801;
constexpr int32_t kMagicOfExamples = 20240522;  // HellaSwag and the like

// Little-endian on every processor; the address need not be aligned.
int32_t ReadInt32(const uint8_t* bytes) {
  return static_cast<int32_t>(uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 |
                              uint32_t{bytes[2]} << 16 | uint32_t{bytes[3]} << 24);
}

Status CheckMagic(const std::string& path, int32_t magic, int32_t version) {
  if (magic == kMagicOfLlama3) {
    return Status::Error(StatusCode::kBadData,
                         "%s: tokens of 32 bits, for Llama 3 (magic %d, version %d); only those of "
                         "16 bits, for GPT-2, are read",
                         path.c_str(), magic, version);
  }
  if (magic == kMagicOfExamples) {
    return Status::Error(StatusCode::kBadData,
                         "%s: multiple-choice examples of llm.c (magic %d), not tokens to train on",
                         path.c_str(), magic);
  }
  if (magic != kMagic) {
    return Status::Error(StatusCode::kBadData,
                         "%s: not a token file of llm.c: it begins with %d instead of %d",
                         path.c_str(), magic, kMagic);
  }
  if (version == kVersion) return {};
  return Status::Error(StatusCode::kBadData,
                       "%s: version %d of the token files of llm.c; only "
                       "version %d is read",
                       path.c_str(), version, kVersion);
}

}  // namespace

// `count` comes from the file: it is believed only when exactly so many bytes follow, so that no
// slice of the tokens reaches beyond the mapping.
Result<TokenFile> TokenFile::Open(const std::string& path) {
  ENGINE_ASSIGN_OR_RETURN(kit::MappedFile file, kit::MappedFile::Open(path));
  const uint8_t* header = file.bytes().data();
  const int64_t size_bytes = static_cast<int64_t>(file.bytes().size());
  if (size_bytes < kHeaderBytes) {
    return Status::Error(StatusCode::kBadData,
                         "%s: %" PRId64
                         " bytes are too few for a token file of llm.c, whose "
                         "header has %" PRId64,
                         path.c_str(), size_bytes, kHeaderBytes);
  }
  ENGINE_RETURN_IF_ERROR(CheckMagic(path, ReadInt32(header), ReadInt32(header + 4)));
  const int64_t count = ReadInt32(header + 8);
  if (count < 0 || size_bytes != kHeaderBytes + count * kTokenBytes) {
    return Status::Error(StatusCode::kBadData,
                         "%s: the header announces %" PRId64 " tokens, and %" PRId64
                         " bytes follow it; is the file cut short?",
                         path.c_str(), count, size_bytes - kHeaderBytes);
  }
  return TokenFile(path, std::move(file), count);
}

// The loop only takes the largest, so that it vectorises; which token was wrong is looked for
// later.
Status TokenFile::Read(int64_t begin, int64_t count, int32_t vocabulary, int32_t* tokens) const {
  const uint8_t* bytes = BytesOf(begin, count).data();
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    tokens[i] = bytes[2 * i] | bytes[2 * i + 1] << 8;
    largest = std::max(largest, tokens[i]);
  }
  if (largest < vocabulary) return {};
  const int64_t i =
      std::find_if(tokens, tokens + count, [&](int32_t token) { return token >= vocabulary; }) -
      tokens;
  return Status::Error(StatusCode::kBadData,
                       "%s: token %" PRId64 ", at offset %" PRId64
                       ", is %d; with data.tokens.vocabulary %d they are 0 to %d",
                       path_.c_str(), begin + i, kHeaderBytes + (begin + i) * kTokenBytes,
                       tokens[i], vocabulary, vocabulary - 1);
}

std::span<const uint8_t> TokenFile::BytesOf(int64_t begin, int64_t count) const {
  return file_.bytes().subspan(static_cast<size_t>(kHeaderBytes + begin * kTokenBytes),
                               static_cast<size_t>(count * kTokenBytes));
}

}  // namespace engine::tokens
