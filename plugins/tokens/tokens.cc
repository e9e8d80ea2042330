// tokens: text as tokens, made from it before: the token files of llm.c.
//
// A sample is `context` tokens and, as targets, the token that follows each of them, all of one
// file. Of a folder those files are taken whose name ends with .bin and has, between anything but
// letters and digits, the word "train" (to train on) or "val" (held out, unless eval_path is given).
//
// Sample i of a file begins at i * context + offset, where the offset, less than `context`, depends
// on seed and epoch; samples for evaluation at i * context. Files are mapped, and a token is checked
// when it is read.
//
// The digest is of the number of tokens of each file and of parts of them, 1 MiB of each: large
// files are not read to begin a run.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/plugin.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/options.h"
#include "token_file.h"

namespace engine::tokens {
namespace {

namespace fs = std::filesystem;

// How much of a file its digest is of.
constexpr int64_t kDigestParts = 16, kDigestPartBytes = 1 << 16;

// Tokens [begin, begin + count) of a file.
struct Slice {
  std::shared_ptr<const TokenFile> file;
  int64_t begin = 0;
  int64_t count = 0;
};

// What is trained on, or what is held out.
struct Slices {
  std::vector<Slice> slices;
  std::vector<int64_t> ends;  // of each, in samples

  int64_t samples() const { return ends.empty() ? 0 : ends.back(); }
  int64_t tokens() const {
    int64_t count = 0;
    for (const Slice& slice : slices) count += slice.count;
    return count;
  }
  // In each the last sample ends, with its last target, inside of it where samples begin up to
  // `offsets` - 1 tokens later.
  void Count(int64_t context, int64_t offsets) {
    int64_t samples = 0;
    for (const Slice& slice : slices) {
      samples += std::max<int64_t>(slice.count - offsets, 0) / context;
      ends.push_back(samples);
    }
  }
};

void AddTo(kit::Digest& digest, const Slice& slice) {
  const auto bytes = slice.file->BytesOf(slice.begin, slice.count);
  const int64_t size = static_cast<int64_t>(bytes.size());
  digest.Add(&size, sizeof size);
  if (size <= kDigestParts * kDigestPartBytes) return digest.Add(bytes.data(), bytes.size());
  for (int64_t i = 0; i < kDigestParts; ++i) {
    const int64_t offset = (size - kDigestPartBytes) * i / (kDigestParts - 1);
    digest.Add(bytes.data() + offset, kDigestPartBytes);
  }
}

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

Result<Paths> FindFiles(const std::string& path, const std::string& eval_path) {
  Paths paths;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    paths.train = {path};  // TokenFile says what is wrong with it
  } else {
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      const Purpose purpose = PurposeOf(it->path().filename().native());
      if (purpose == Purpose::kTrain) paths.train.push_back(it->path().native());
      if (purpose == Purpose::kEval) paths.eval.push_back(it->path().native());
    }
    if (error) {
      return Status::Error(StatusCode::kMissingInput, "cannot read '%s': %s", path.c_str(),
                           error.message().c_str());
    }
  }
  if (!eval_path.empty()) paths.eval = {eval_path};
  std::sort(paths.train.begin(), paths.train.end());
  std::sort(paths.eval.begin(), paths.eval.end());
  if (!paths.train.empty()) return paths;
  return Status::Error(StatusCode::kMissingInput,
                       "%s: this folder has no file to train on, with a name like "
                       "NAME_train.bin or NAME_train_000001.bin",
                       path.c_str());
}

// Without the last `holdout` of each file into `first`, and that into `rest`.
Status OpenFiles(const std::vector<std::string>& paths, double holdout, std::vector<Slice>* first,
                 std::vector<Slice>* rest) {
  for (const std::string& path : paths) {
    ENGINE_ASSIGN_OR_RETURN(TokenFile opened, TokenFile::Open(path));
    const auto file = std::make_shared<const TokenFile>(std::move(opened));
    const int64_t held_out = kit::HoldoutCount(file->size(), holdout);
    const int64_t cut = file->size() - held_out;
    first->push_back({.file = file, .begin = 0, .count = cut});
    if (held_out > 0) rest->push_back({.file = file, .begin = cut, .count = held_out});
  }
  return {};
}

class Tokens final : public Dataset {
 public:
  explicit Tokens(const Options& options)
      : path_(options.String("path")),
        eval_path_(options.String("eval_path")),
        context_(options.Int("context")),
        vocabulary_(static_cast<int32_t>(options.Int("vocabulary"))),
        holdout_(options.Float("holdout")),
        name_("tokens " + path_),
        input_{
            .name = "input", .shape = {context_}, .dtype = DType::kInt32, .classes = vocabulary_},
        target_(input_) {
    target_.name = "target";
  }

  DatasetInfo info() const noexcept override {
    return {.name = name_,
            .inputs = {&input_, 1},
            .targets = {&target_, 1},
            .train_samples = train_.samples(),
            .held_out_samples = held_out_.samples(),
            .digest = digest_};
  }

  Status Open(uint64_t seed) noexcept override {
    seed_ = seed;
    return kit::CatchNoMemory([this] { return Read(); });
  }

  Status Fill(const FillCall& call) const noexcept override {
    const bool train = call.split == Split::kTrain;
    const Slices& from = train ? train_ : held_out_;
    const int64_t offset = train ? static_cast<int64_t>(RandomBits({seed_, call.epoch}) %
                                                        static_cast<uint64_t>(context_))
                                 : 0;
    auto* input = static_cast<int32_t*>(call.tensors[0]);
    auto* target = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      const auto [place, number] = kit::Locate(from.ends, index);
      const Slice& slice = from.slices[place];
      const int64_t begin = slice.begin + number * context_ + offset;
      ENGINE_RETURN_IF_ERROR(slice.file->Read(begin, context_, vocabulary_, input));
      std::copy(input + 1, input + context_, target);
      ENGINE_RETURN_IF_ERROR(
          slice.file->Read(begin + context_, 1, vocabulary_, target + context_ - 1));
      input += context_;
      target += context_;
    }
    return {};
  }

 private:
  Status Read() {
    ENGINE_ASSIGN_OR_RETURN(const Paths paths, FindFiles(path_, eval_path_));
    const bool has_eval_files = !paths.eval.empty();
    ENGINE_RETURN_IF_ERROR(
        OpenFiles(paths.train, has_eval_files ? 0 : holdout_, &train_.slices, &held_out_.slices));
    ENGINE_RETURN_IF_ERROR(OpenFiles(paths.eval, 0, &held_out_.slices, &held_out_.slices));
    train_.Count(context_, context_);
    held_out_.Count(context_, 1);
    if (train_.samples() == 0) return TooLittle("train on", train_.tokens(), 2 * context_);
    if (held_out_.samples() == 0 && (has_eval_files || holdout_ > 0)) {
      return TooLittle("evaluate on", held_out_.tokens(), context_ + 1);
    }
    kit::Digest digest;
    for (const Slice& slice : train_.slices) AddTo(digest, slice);
    digest_ = digest.Text();
    return {};
  }

  Status TooLittle(const char* purpose, int64_t tokens, int64_t needed) const {
    return Status::Error(StatusCode::kBadData,
                         "%s: %" PRId64 " tokens to %s, of which a context of %" PRId64
                         " needs at least %" PRId64
                         " in one file; give more tokens or a smaller data.tokens.context",
                         path_.c_str(), tokens, purpose, context_, needed);
  }

  // Constant after Open.
  const std::string path_, eval_path_;
  const int64_t context_;
  const int32_t vocabulary_;
  const double holdout_;
  const std::string name_;
  const SampleTensor input_;
  SampleTensor target_;
  uint64_t seed_ = 1;
  Slices train_, held_out_;
  std::string digest_;
};

Status Create(Host&, const Options& options, Object** out) noexcept {
  ENGINE_RETURN_IF_ERROR(kit::CheckHoldout("data.tokens.holdout", options.Float("holdout")));
  *out = new Tokens(options);
  return {};
}

}  // namespace
}  // namespace engine::tokens

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = engine::DescribePlugin(
    {.name = "tokens",
     .version = "1.0.0",
     .kind = engine::PluginKind::kDataset,
     .doc = "token files of llm.c (GPT-2: a header and uint16 tokens)",
     .create = engine::tokens::Create},
    engine::NoOps(),
    std::array{
        engine::kit::PathOption("path", engine::kit::Path::kRequired,
                                "a file, or a folder with *_train*.bin and *_val*.bin"),
        engine::kit::IntOption("context", "1024", 1, 1 << 20, "tokens of a sample"),
        engine::kit::IntOption("vocabulary", "50257", 2, 1 << 16, "tokens are less than this"),
        engine::kit::PathOption("eval_path", engine::kit::Path::kOptional,
                                "file with held-out tokens"),
        engine::kit::NumberOption(engine::OptionType::kFloat, "holdout", "0.1", 0, 1,
                                  "where no file is held out, the share of each, at its end")});
