// tokens: text as tokens, made from it before (token_file.h has the formats).
//
// A sample is `context` tokens and, as targets, the token that follows each of them, all of one
// file. Of a folder those files are taken whose name ends with .bin or .npy and has, between
// anything but letters and digits, the word "train" (to train on) or "val" (held out, unless
// eval_path is given).
//
// kit::TokenDataset says where in a file samples begin. Files are mapped, and a token is checked
// when it is read.
//
// The digest is of the number of tokens of each file and of parts of them, 1 MiB of each: large
// files are not read to begin a run.
#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>
#include <string>
#include <system_error>
#include <vector>

#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/options.h"
#include "token_file.h"

namespace engine::tokens {
namespace {

namespace fs = std::filesystem;

// Tokens [begin, begin + count) of a file.
struct Slice {
  data_kit::NumberArray file;
  int64_t begin = 0, count = 0;
};

// What is trained on, or what is held out.
struct Slices {
  std::vector<Slice> slices;
  std::vector<int64_t> ends;  // of each, in samples

  int64_t tokens() const {
    int64_t count = 0;
    for (const Slice& slice : slices) count += slice.count;
    return count;
  }
};

enum class Purpose { kNone, kTrain, kEval };

// By the first of the two words in its name.
Purpose PurposeOf(const std::string& file_name) {
  static const std::regex kWord("(?:^|[^0-9A-Za-z])(train|val)(?![0-9A-Za-z]).*\\.(?:bin|npy)$");
  std::smatch found;
  if (file_name.starts_with('.') || !std::regex_search(file_name, found, kWord)) {
    return Purpose::kNone;
  }
  return found[1] == "train" ? Purpose::kTrain : Purpose::kEval;
}

struct Paths {
  std::vector<std::string> train, eval;
};

Result<Paths> FindFiles(const std::string& path, const std::string& eval_path) {
  Paths paths;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    paths.train = {path};  // OpenTokens says what is wrong with it
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
Status OpenFiles(const std::vector<std::string>& paths, Format format, double holdout,
                 std::vector<Slice>* first, std::vector<Slice>* rest) {
  for (const std::string& path : paths) {
    ENGINE_ASSIGN_OR_RETURN(const data_kit::NumberArray file, OpenTokens(path, format));
    const int64_t held_out = kit::HoldoutCount(file.rows(), holdout);
    const int64_t cut = file.rows() - held_out;
    first->push_back({.file = file, .begin = 0, .count = cut});
    if (held_out > 0) rest->push_back({.file = file, .begin = cut, .count = held_out});
  }
  return {};
}

class Tokens final : public kit::TokenDataset {
 public:
  explicit Tokens(const Options& options)
      : TokenDataset("tokens " + std::string(options.String("path")), options,
                     options.Int("vocabulary"), SampleTensor().content),
        path_(options.String("path")),
        eval_path_(options.String("eval_path")),
        vocabulary_(static_cast<int32_t>(options.Int("vocabulary"))),
        format_(options.String("format") == "uint16"   ? Format::kUint16
                : options.String("format") == "uint32" ? Format::kUint32
                                                       : Format::kGuess) {}

  Status Fill(const FillCall& call) const noexcept override {
    const Slices& from = call.split == Split::kTrain ? train_ : held_out_;
    const int64_t offset = OffsetIn(call);
    auto* input = static_cast<int32_t*>(call.tensors[0]);
    auto* target = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      const auto [place, number] = kit::Locate(from.ends, index);
      const Slice& slice = from.slices[place];
      const int64_t begin = slice.begin + number * context_ + offset;
      ENGINE_RETURN_IF_ERROR(ReadTokens(slice.file, begin, context_, vocabulary_, input));
      std::copy(input + 1, input + context_, target);
      ENGINE_RETURN_IF_ERROR(
          ReadTokens(slice.file, begin + context_, 1, vocabulary_, target + context_ - 1));
      input += context_;
      target += context_;
    }
    return {};
  }

 private:
  Status Read() override {
    ENGINE_ASSIGN_OR_RETURN(const Paths paths, FindFiles(path_, eval_path_));
    const bool has_eval_files = !paths.eval.empty();
    ENGINE_RETURN_IF_ERROR(OpenFiles(paths.train, format_, has_eval_files ? 0 : holdout_,
                                     &train_.slices, &held_out_.slices));
    ENGINE_RETURN_IF_ERROR(OpenFiles(paths.eval, format_, 0, &held_out_.slices, &held_out_.slices));
    train_samples_ = Count(train_, context_);
    held_out_samples_ = Count(held_out_, 1);
    ENGINE_RETURN_IF_ERROR(
        CheckSamples(path_, train_.tokens(), held_out_.tokens(), has_eval_files || holdout_ > 0,
                     {"tokens", " in one file", "more tokens or a smaller data.tokens.context"}));
    kit::Digest digest;
    for (const Slice& slice : train_.slices) {
      digest.AddParts(slice.file.elements.data(),
                      static_cast<size_t>(slice.count * slice.file.type.size_bytes));
    }
    digest_ = digest.Text();
    return {};
  }

  // The samples of all slices, none of which goes over the end of one.
  int64_t Count(Slices& of, int64_t offsets) const {
    int64_t samples = 0;
    for (const Slice& slice : of.slices) {
      samples += SamplesIn(slice.count, offsets);
      of.ends.push_back(samples);
    }
    return samples;
  }

  // Constant after Open.
  const std::string path_, eval_path_;
  const int32_t vocabulary_;
  const Format format_;
  Slices train_, held_out_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kDataset, "tokens", "1.0.0",
    "tokens in files of llm.c, .npy or, as nanoGPT's .bin, alone", kit::Create<Tokens>,
    std::array{kit::PathOption("path", kit::Path::kRequired,
                               "a file, or a folder with *_train*.bin and *_val*.bin, or .npy"),
               kit::EnumOption("format", "guess", "guess|uint16|uint32",
                               "guess: llm.c or .npy by how they begin; else tokens alone"),
               kit::IntOption("context", "1024", 1, 1 << 20, "tokens of a sample"),
               kit::IntOption("vocabulary", "50257", 2, 2147483647, "tokens are less than this"),
               kit::PathOption("eval_path", kit::Path::kOptional, "file with held-out tokens"),
               kit::HoldoutOption("where no file is held out, the share of each, at its end")});

}  // namespace engine::tokens
