// text: text as bytes; the tokens are the 256 values of a byte.
//
// A sample is `context` bytes and, as targets, the byte that follows each of them. The beginnings of
// all files, one after the other, are the text to train on, and their held-out ends the text to
// evaluate on; a sample may begin in one file and end in the next, but never holds bytes of both
// texts. Sample i of an epoch begins at i * context + offset, where the offset, less than `context`,
// depends on seed and epoch: so every epoch cuts the text in other places. Samples for evaluation
// begin at i * context.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <memory>
#include <string>
#include <vector>

#include "engine/plugin.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/options.h"
#include "text_files.h"

namespace engine::text {
namespace {

constexpr int64_t kByteValues = 256;

class Text final : public Dataset {
 public:
  explicit Text(const Options& options)
      : path_(options.String("path")),
        context_(options.Int("context")),
        holdout_(options.Float("holdout")),
        name_("text " + path_),
        input_{.name = "input",
               .shape = {context_},
               .dtype = DType::kInt32,
               .content = TensorContent::kBytes,
               .classes = kByteValues},
        target_(input_) {
    target_.name = "target";
  }

  DatasetInfo info() const noexcept override {
    return {.name = name_,
            .inputs = {&input_, 1},
            .targets = {&target_, 1},
            .train_samples = SamplesIn(train_, context_),
            .held_out_samples = SamplesIn(held_out_, 1),
            .digest = digest_};
  }

  Status Open(uint64_t seed) noexcept override {
    seed_ = seed;
    return kit::CatchNoMemory([this] { return Read(); });
  }

  Status Fill(const FillCall& call) const noexcept override {
    const bool train = call.split == Split::kTrain;
    const int64_t offset = train ? static_cast<int64_t>(RandomBits({seed_, call.epoch}) %
                                                        static_cast<uint64_t>(context_))
                                 : 0;
    const char* const begin = (train ? train_ : held_out_).data() + offset;
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
  Status Read() {
    ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> files, ReadTextFiles(path_));
    for (const std::string& file : files) {
      const auto size = static_cast<int64_t>(file.size());
      const auto cut = static_cast<size_t>(size - kit::HoldoutCount(size, holdout_));
      train_.append(file, 0, cut);
      held_out_.append(file, cut);
    }
    if (info().train_samples == 0) return TooLittle("train on", train_.size(), 2 * context_);
    if (info().held_out_samples == 0 && holdout_ > 0) {
      return TooLittle("evaluate on", held_out_.size(), context_ + 1);
    }
    kit::Digest digest;
    digest.Add(train_.data(), train_.size());
    digest_ = digest.Text();
    return {};
  }

  // Where a sample may begin up to `offsets` - 1 bytes later, so that the last one ends, with its
  // last target, inside of the text at every offset.
  int64_t SamplesIn(const std::string& text, int64_t offsets) const {
    return std::max<int64_t>(static_cast<int64_t>(text.size()) - offsets, 0) / context_;
  }

  Status TooLittle(const char* purpose, size_t bytes, int64_t needed) const {
    return Status::Error(StatusCode::kBadData,
                         "%s: %zu bytes of text to %s, of which a context of %" PRId64
                         " needs at least %" PRId64
                         "; give more text, a smaller data.text.context or another "
                         "data.text.holdout",
                         path_.c_str(), bytes, purpose, context_, needed);
  }

  // Constant after Open.
  const std::string path_;
  const int64_t context_;
  const double holdout_;
  const std::string name_;
  const SampleTensor input_;
  SampleTensor target_;
  uint64_t seed_ = 1;
  std::string train_, held_out_, digest_;
};

Status Create(Host&, const Options& options, Object** out) noexcept {
  ENGINE_RETURN_IF_ERROR(kit::CheckHoldout("data.text.holdout", options.Float("holdout")));
  *out = new Text(options);
  return {};
}

}  // namespace
}  // namespace engine::text

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = engine::DescribePlugin(
    {.name = "text",
     .version = "1.0.0",
     .kind = engine::PluginKind::kDataset,
     .doc = "a text file, or the text files of a folder, as bytes",
     .create = engine::text::Create},
    engine::NoOps(),
    std::array{
        engine::kit::PathOption("path", engine::kit::Path::kRequired,
                                "a file, or a folder whose text files are read"),
        engine::kit::IntOption("context", "64", 1, 1 << 20, "bytes of a sample"),
        engine::kit::NumberOption(engine::OptionType::kFloat, "holdout", "0.1", 0, 1,
                                  "share of each file, at its end, that is not trained on")});
