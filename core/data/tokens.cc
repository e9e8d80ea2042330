#include "core/data/tokens.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "app/checkpoint/digest.h"
#include "core/data/holdout.h"
#include "core/data/random.h"
#include "core/data/token_file.h"

namespace engine {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kMaxContext = 1 << 20;
constexpr int32_t kMaxVocabulary = 1 << 16;
// How much of a file its digest is of.
constexpr int64_t kDigestParts = 16, kDigestPartBytes = 1 << 16;

// Tokens [begin, begin + count) of a file.
struct Slice {
  std::shared_ptr<const TokenFile> file;
  int64_t begin = 0;
  int64_t count = 0;
};

int64_t TokensIn(const std::vector<Slice>& slices) {
  int64_t count = 0;
  for (const Slice& slice : slices) count += slice.count;
  return count;
}

void AddTo(Digest& digest, const Slice& slice) {
  const auto bytes = slice.file->BytesOf(slice.begin, slice.count);
  const int64_t size = static_cast<int64_t>(bytes.size());
  digest.Add(&size, sizeof size);
  if (size <= kDigestParts * kDigestPartBytes) return digest.Add(bytes.data(), bytes.size());
  for (int64_t i = 0; i < kDigestParts; ++i) {
    const int64_t offset = (size - kDigestPartBytes) * i / (kDigestParts - 1);
    digest.Add(bytes.data() + offset, kDigestPartBytes);
  }
}

class TokensDataset final : public Dataset {
 public:
  // The offset of an epoch is in [0, offsets).
  TokensDataset(const TokensOptions& options, std::vector<Slice> slices, int64_t offsets)
      : slices_(std::move(slices)), seed_(options.seed), offsets_(offsets) {
    const int64_t context = options.context;
    Digest digest;
    for (const Slice& slice : slices_) {
      // The last sample ends, with its last target, inside the slice at every offset.
      info_.size += std::max<int64_t>(slice.count - offsets_, 0) / context;
      ends_.push_back(info_.size);
      AddTo(digest, slice);
    }
    info_.name = "tokens " + options.path;
    info_.input_shape = {context};
    info_.input_dtype = DType::kInt32;
    info_.target_shape = {context};
    info_.classes = options.vocabulary;
    info_.digest = digest.Text();
  }

  const DatasetInfo& info() const override { return info_; }

  Status Get(uint64_t epoch, int64_t index, void* input, int32_t* target) const override {
    const size_t s =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const Slice& slice = slices_[s];
    const int64_t context = info_.input_shape[0];
    const int32_t vocabulary = static_cast<int32_t>(info_.classes);
    const int64_t offset =
        static_cast<int64_t>(RandomBits({seed_, epoch}) % static_cast<uint64_t>(offsets_));
    const int64_t begin = slice.begin + (index - (s == 0 ? 0 : ends_[s - 1])) * context + offset;
    int32_t* tokens = static_cast<int32_t*>(input);
    ENGINE_RETURN_IF_ERROR(slice.file->Read(begin, context, vocabulary, tokens));
    std::copy(tokens + 1, tokens + context, target);
    return slice.file->Read(begin + context, 1, vocabulary, target + context - 1);
  }

 private:
  const std::vector<Slice> slices_;
  const uint64_t seed_;
  const int64_t offsets_;
  std::vector<int64_t> ends_;  // of each slice, in samples of the dataset
  DatasetInfo info_;
};

enum class Purpose { kNone, kTrain, kEval };

// By the words of its name.
Purpose PurposeOf(const std::string& file_name) {
  constexpr std::string_view kEnding = ".bin";
  if (!file_name.ends_with(kEnding) || file_name.starts_with('.')) return Purpose::kNone;
  constexpr char kAlphanumeric[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const std::string_view stem(file_name.data(), file_name.size() - kEnding.size());
  for (size_t begin = 0; begin < stem.size();) {
    const size_t end = std::min(stem.find_first_not_of(kAlphanumeric, begin), stem.size());
    const std::string_view word = stem.substr(begin, end - begin);
    if (word == "train") return Purpose::kTrain;
    if (word == "val") return Purpose::kEval;
    begin = end + 1;
  }
  return Purpose::kNone;
}

struct Paths {
  std::vector<std::string> train, eval;
};

Result<Paths> FindFiles(const TokensOptions& options) {
  Paths paths;
  std::error_code error;
  if (!fs::is_directory(options.path, error)) {
    paths.train = {options.path};  // TokenFile says what is wrong with it
  } else {
    for (fs::directory_iterator it(options.path, error), end; !error && it != end;
         it.increment(error)) {
      const Purpose purpose = PurposeOf(it->path().filename().native());
      if (purpose == Purpose::kTrain) paths.train.push_back(it->path().native());
      if (purpose == Purpose::kEval) paths.eval.push_back(it->path().native());
    }
    if (error) {
      return Status::Error(StatusCode::kMissingInput, "cannot read '%s': %s", options.path.c_str(),
                           error.message().c_str());
    }
  }
  if (!options.eval_path.empty()) paths.eval = {options.eval_path};
  std::sort(paths.train.begin(), paths.train.end());
  std::sort(paths.eval.begin(), paths.eval.end());
  if (!paths.train.empty()) return paths;
  return Status::Error(StatusCode::kMissingInput,
                       "%s: this folder has no file to train on, with a name like "
                       "NAME_train.bin or NAME_train_000001.bin",
                       options.path.c_str());
}

// Without the last `holdout` of each file into `first`, and that into `rest`.
Status OpenFiles(const std::vector<std::string>& paths, double holdout, std::vector<Slice>* first,
                 std::vector<Slice>* rest) {
  for (const std::string& path : paths) {
    ENGINE_ASSIGN_OR_RETURN(TokenFile opened, TokenFile::Open(path));
    const auto file = std::make_shared<const TokenFile>(std::move(opened));
    const int64_t held_out = HoldoutCount(file->size(), holdout);
    const int64_t cut = file->size() - held_out;
    first->push_back({.file = file, .begin = 0, .count = cut});
    if (held_out > 0) rest->push_back({.file = file, .begin = cut, .count = held_out});
  }
  return {};
}

Status CheckOptions(const TokensOptions& options) {
  if (options.path.empty()) {
    return Status::Error(StatusCode::kConfig,
                         "data.tokens needs a path: a token file of llm.c, or a folder with some");
  }
  if (options.context < 1 || options.context > kMaxContext) {
    return Status::Error(StatusCode::kConfig, "data.tokens.context is %d; it must be 1 to %d",
                         options.context, kMaxContext);
  }
  if (options.vocabulary < 2 || options.vocabulary > kMaxVocabulary) {
    return Status::Error(StatusCode::kConfig, "data.tokens.vocabulary is %d; it must be 2 to %d",
                         options.vocabulary, kMaxVocabulary);
  }
  return CheckHoldout("data.tokens.holdout", options.holdout);
}

Status TooLittle(const TokensOptions& options, const char* purpose, int64_t tokens,
                 int64_t needed) {
  return Status::Error(StatusCode::kBadData,
                       "%s: %" PRId64
                       " tokens to %s, of which a context of %d needs at least %" PRId64
                       " in one file; give more tokens or a smaller data.tokens.context",
                       options.path.c_str(), tokens, purpose, options.context, needed);
}

}  // namespace

Result<DatasetPair> OpenTokens(const TokensOptions& options) {
  ENGINE_RETURN_IF_ERROR(CheckOptions(options));
  ENGINE_ASSIGN_OR_RETURN(const Paths paths, FindFiles(options));
  std::vector<Slice> train, eval;
  const bool has_eval_files = !paths.eval.empty();
  ENGINE_RETURN_IF_ERROR(
      OpenFiles(paths.train, has_eval_files ? 0 : options.holdout, &train, &eval));
  ENGINE_RETURN_IF_ERROR(OpenFiles(paths.eval, 0, &eval, &eval));
  const int64_t context = options.context;
  const int64_t train_tokens = TokensIn(train), eval_tokens = TokensIn(eval);
  DatasetPair pair;
  pair.train = std::make_unique<TokensDataset>(options, std::move(train), context);
  pair.eval = std::make_unique<TokensDataset>(options, std::move(eval), 1);
  if (pair.train->info().size == 0) {
    return TooLittle(options, "train on", train_tokens, 2 * context);
  }
  if (pair.eval->info().size == 0 && (has_eval_files || options.holdout > 0)) {
    return TooLittle(options, "evaluate on", eval_tokens, context + 1);
  }
  return pair;
}

}  // namespace engine
