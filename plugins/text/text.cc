// text: text as bytes; the tokens are the 256 values of a byte.
//
// A sample is `context` bytes and, as targets, the byte that follows each of them. The beginnings of
// all files, one after the other, are the text to train on, and their held-out ends the text to
// evaluate on; a sample may begin in one file and end in the next, but never holds bytes of both
// texts. kit::TokenDataset says where samples begin.
#include <array>
#include <string>
#include <vector>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/options.h"
#include "text_files.h"

namespace engine::text {
namespace {

constexpr int64_t kByteValues = 256;

class Text final : public kit::TokenDataset {
 public:
  explicit Text(const Options& options)
      : TokenDataset("text " + std::string(options.String("path")), options, kByteValues,
                     TensorContent::kBytes),
        path_(options.String("path")) {}

  Status Fill(const FillCall& call) const noexcept override {
    const std::string& text = call.split == Split::kTrain ? train_ : held_out_;
    const char* const begin = text.data() + OffsetIn(call);
    auto* input = static_cast<int32_t*>(call.tensors[0]);
    auto* target = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      const char* const bytes = begin + index * context_;
      for (int64_t i = 0; i < context_; ++i) {
        *input++ = static_cast<uint8_t>(bytes[i]);
        *target++ = static_cast<uint8_t>(bytes[i + 1]);
      }
    }
    return {};
  }

 private:
  Status Read() override {
    ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> files, ReadTextFiles(path_));
    for (const std::string& file : files) {
      const auto size = static_cast<int64_t>(file.size());
      const auto cut = static_cast<size_t>(size - kit::HoldoutCount(size, holdout_));
      train_.append(file, 0, cut);
      held_out_.append(file, cut);
    }
    const auto train_bytes = static_cast<int64_t>(train_.size());
    const auto held_out_bytes = static_cast<int64_t>(held_out_.size());
    train_samples_ = SamplesIn(train_bytes, context_);
    held_out_samples_ = SamplesIn(held_out_bytes, 1);
    ENGINE_RETURN_IF_ERROR(
        CheckSamples(path_, train_bytes, held_out_bytes, holdout_ > 0,
                     {"bytes of text", "",
                      "more text, a smaller data.text.context or another data.text.holdout"}));
    kit::Digest digest;
    digest.Add(train_.data(), train_.size());
    digest_ = digest.Text();
    return {};
  }

  // Constant after Open.
  const std::string path_;
  std::string train_, held_out_;
};

StatusValue Create(Host&, const Options& options, Object** out) noexcept {
  ENGINE_RETURN_IF_ERROR(kit::CheckHoldout("data.text.holdout", options.Float("holdout")));
  return kit::Make<Text>(out, options);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "text",
     .version = "1.0.0",
     .kind = PluginKind::kDataset,
     .doc = "a text file, or the text files of a folder, as bytes",
     .create = Create},
    NoOps(),
    std::array{kit::PathOption("path", kit::Path::kRequired,
                               "a file, or a folder whose text files are read"),
               kit::IntOption("context", "64", 1, 1 << 20, "bytes of a sample"),
               kit::FloatOption("holdout", "0.1", 0, 1,
                                "share of each file, at its end, that is not trained on")});

}  // namespace engine::text
