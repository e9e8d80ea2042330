#include "core/data/text.h"

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <utility>
#include <vector>

#include "app/checkpoint/digest.h"
#include "core/data/holdout.h"
#include "core/data/random.h"
#include "core/data/text_files.h"

namespace engine {
namespace {

constexpr int64_t kByteValues = 256;
constexpr int32_t kMaxContext = 1 << 20;

class TextDataset final : public Dataset {
 public:
  // The offset of an epoch is in [0, offsets).
  TextDataset(const TextOptions& options, std::string text, int64_t offsets)
      : text_(std::move(text)), seed_(options.seed), offsets_(offsets) {
    const int64_t context = options.context;
    info_.name = "text " + options.path;
    // The last sample ends, with its last target, inside the text at every offset.
    info_.size = std::max<int64_t>(static_cast<int64_t>(text_.size()) - offsets_, 0) / context;
    info_.input_shape = {context};
    info_.input_dtype = DType::kInt32;
    info_.target_shape = {context};
    info_.classes = kByteValues;
    Digest digest;
    digest.Add(text_.data(), text_.size());
    info_.digest = digest.Text();
  }

  const DatasetInfo& info() const override { return info_; }

  Status Get(uint64_t epoch, int64_t index, void* input, int32_t* target) const override {
    const int64_t context = info_.input_shape[0];
    const int64_t offset =
        static_cast<int64_t>(RandomBits({seed_, epoch}) % static_cast<uint64_t>(offsets_));
    const char* bytes = text_.data() + index * context + offset;
    int32_t* tokens = static_cast<int32_t*>(input);
    for (int64_t i = 0; i < context; ++i) {
      tokens[i] = static_cast<uint8_t>(bytes[i]);
      target[i] = static_cast<uint8_t>(bytes[i + 1]);
    }
    return {};
  }

 private:
  const std::string text_;
  const uint64_t seed_;
  const int64_t offsets_;
  DatasetInfo info_;
};

Status CheckOptions(const TextOptions& options) {
  if (options.path.empty()) {
    return Status::Error(StatusCode::kConfig, "data.text needs a path: a text file or a folder");
  }
  if (options.context < 1 || options.context > kMaxContext) {
    return Status::Error(StatusCode::kConfig, "data.text.context is %d; it must be 1 to %d",
                         options.context, kMaxContext);
  }
  return CheckHoldout("data.text.holdout", options.holdout);
}

Status TooLittle(const TextOptions& options, const char* purpose, size_t bytes, int64_t needed) {
  return Status::Error(StatusCode::kBadData,
                       "%s: %zu bytes of text to %s, of which a context of %d needs at least "
                       "%" PRId64
                       "; give more text, a smaller data.text.context or another "
                       "data.text.holdout",
                       options.path.c_str(), bytes, purpose, options.context, needed);
}

}  // namespace

Result<DatasetPair> OpenText(const TextOptions& options) {
  ENGINE_RETURN_IF_ERROR(CheckOptions(options));
  ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> files, ReadTextFiles(options.path));
  std::string train, eval;
  for (const std::string& file : files) {
    const int64_t size = static_cast<int64_t>(file.size());
    const size_t cut = static_cast<size_t>(size - HoldoutCount(size, options.holdout));
    train.append(file, 0, cut);
    eval.append(file, cut);
  }
  const int64_t context = options.context;
  const size_t train_bytes = train.size(), eval_bytes = eval.size();
  DatasetPair pair;
  pair.train = std::make_unique<TextDataset>(options, std::move(train), context);
  pair.eval = std::make_unique<TextDataset>(options, std::move(eval), 1);
  if (pair.train->info().size == 0) return TooLittle(options, "train on", train_bytes, 2 * context);
  if (pair.eval->info().size == 0 && options.holdout > 0) {
    return TooLittle(options, "evaluate on", eval_bytes, context + 1);
  }
  return pair;
}

}  // namespace engine
