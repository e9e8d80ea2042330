// text: text as bytes, whose tokens are the 256 values of a byte, or as the pieces of a
// SentencePiece model, into which it is split when it is read.
//
// A sample is `context` tokens and, as targets, the token that follows each of them. The beginnings
// of all files, one after the other, are the text to train on, and their held-out ends the text to
// evaluate on; a sample may begin in one file and end in the next, but never holds tokens of both
// texts. kit::TokenDataset says where samples begin.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/options.h"
#include "pieces.h"
#include "text_files.h"

namespace engine::text {
namespace {

constexpr int64_t kByteValues = 256;

// Of a character of UTF-8, not its first byte.
bool IsContinuation(char byte) {
  return (static_cast<uint8_t>(byte) & 0xc0) == 0x80;
}

class Text final : public kit::TokenDataset {
 public:
  explicit Text(const Options& options)
      : TokenDataset("text " + std::string(options.String("path")), options, kByteValues,
                     TensorContent::kBytes),
        path_(options.String("path")),
        model_(options.String("sentencepiece")) {
    if (model_.empty()) return;
    knows_samples_ = false;  // how many pieces there are
    input_.content = target_.content = TensorContent::kNumbers;
  }

  Status Fill(const FillCall& call) const noexcept override {
    const bool train = call.split == Split::kTrain;
    const auto fill = [&](const auto* tokens) {
      auto* input = static_cast<int32_t*>(call.tensors[0]);
      auto* target = static_cast<int32_t*>(call.tensors[1]);
      for (const int64_t index : call.indices) {
        const auto* const first = tokens + OffsetIn(call) + index * context_;
        input = std::copy_n(first, context_, input);
        target = std::copy_n(first + 1, context_, target);
      }
      return Status();
    };
    if (!model_.empty()) return fill((train ? train_pieces_ : held_out_pieces_).data());
    return fill(reinterpret_cast<const uint8_t*>((train ? train_ : held_out_).data()));
  }

 private:
  Status Read() override {
    ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> files, ReadTextFiles(path_));
    for (const std::string& file : files) {
      const auto size = static_cast<int64_t>(file.size());
      auto cut = static_cast<size_t>(size - kit::HoldoutCount(size, holdout_));
      while (!model_.empty() && cut < file.size() && IsContinuation(file[cut])) ++cut;
      train_.append(file, 0, cut);
      held_out_.append(file, cut);
    }
    kit::Digest digest;
    digest.Add(train_.data(), train_.size());
    auto train_tokens = static_cast<int64_t>(train_.size());
    auto held_out_tokens = static_cast<int64_t>(held_out_.size());
    if (!model_.empty()) {
      ENGINE_RETURN_IF_ERROR(SplitTexts());
      train_tokens = static_cast<int64_t>(train_pieces_.size());
      held_out_tokens = static_cast<int64_t>(held_out_pieces_.size());
      digest.Add(train_pieces_.data(), train_pieces_.size() * sizeof(int32_t));
    }
    digest_ = digest.Text();
    train_samples_ = SamplesIn(train_tokens, context_);
    held_out_samples_ = SamplesIn(held_out_tokens, 1);
    return CheckSamples(path_, train_tokens, held_out_tokens, holdout_ > 0,
                        {model_.empty() ? "bytes of text" : "pieces of text", "",
                         "more text, a smaller data.text.context or another data.text.holdout"});
  }

  // The text itself is not kept.
  Status SplitTexts() {
    ENGINE_ASSIGN_OR_RETURN(Pieces pieces, SplitIntoPieces(model_, {train_, held_out_}));
    train_pieces_ = std::move(pieces.of[0]);
    held_out_pieces_ = std::move(pieces.of[1]);
    input_.classes = target_.classes = pieces.vocabulary;
    knows_samples_ = true;
    std::string().swap(train_);
    std::string().swap(held_out_);
    return {};
  }

  // Constant after Open.
  const std::string path_, model_;
  std::string train_, held_out_;  // or, of a model:
  std::vector<int32_t> train_pieces_, held_out_pieces_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kDataset, "text", "1.0.0",
    "a text file, or the text files of a folder, as bytes or as pieces of SentencePiece",
    kit::Create<Text>,
    std::array{kit::PathOption("path", kit::Path::kRequired,
                               "a file, or a folder whose text files are read"),
               kit::IntOption("context", "64", 1, 1 << 20, "tokens of a sample"),
               kit::PathOption("sentencepiece", kit::Path::kOptional,
                               "a model of SentencePiece; without it tokens are bytes"),
               kit::HoldoutOption("share of each file, at its end, that is not trained on")});

}  // namespace engine::text
