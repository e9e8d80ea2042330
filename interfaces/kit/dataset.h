// Parts to build datasets from: files, the share that is held out, and what most datasets are.
// Compiled into the plugin that includes it and no part of the ABI.
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/dataset.h"
#include "engine/ext/class_names.h"
#include "engine/options.h"
#include "kit/file.h"

namespace engine::kit {

// Runs what may throw std::bad_alloc, as reading a large file may: kResourceExhausted then. Without
// exceptions (-fno-exceptions) that ends the process.
template <typename Body>
Status CatchNoMemory(Body body) noexcept {
#ifdef __cpp_exceptions
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted, "out of memory while the data was read");
  }
#else
  return body();
#endif
}

// `key` is the name of the share in the configuration.
inline Status CheckHoldout(const char* key, double share) {
  if (share >= 0 && share < 1) return {};
  return Status::Error(StatusCode::kConfig, "%s is %g; it must be at least 0 and less than 1", key,
                       share);
}

// How many of `size` are held out for evaluation, to the nearest.
inline int64_t HoldoutCount(int64_t size, double share) {
  return std::llround(static_cast<double>(size) * share);
}

// Of samples that lie in several places one after the other, `ends[i]` being the number of those in
// the first i + 1 of them: in which one sample `index` is, and what number it has there.
inline std::pair<size_t, int64_t> Locate(std::span<const int64_t> ends, int64_t index) {
  const auto place =
      static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
  return {place, index - (place == 0 ? 0 : ends[place - 1])};
}

// The target that says how much each sample counts: a float32 scalar, which losses take as their
// input after the first target.
inline constexpr std::string_view kSampleWeight = "sample_weight";

// A dataset of samples with one input and one target, and a weight if it has any, which it reads
// when it is opened.
class ReadDataset : public DatasetBase, public ClassNamesBase {
 public:
  DatasetInfo info() const noexcept final {
    const size_t targets = has_weight_ ? 2 : 1;
    return {.name = name_,
            .inputs = {&input_, size_t{knows_samples_}},
            .targets = {targets_, knows_samples_ ? targets : 0},
            .train_samples = train_samples_,
            .held_out_samples = held_out_samples_,
            .digest = digest_};
  }
  Status Open(uint64_t seed) noexcept final {
    seed_ = seed;
    return CatchNoMemory([this]() -> Status {
      ENGINE_RETURN_IF_ERROR(Read());
      for (std::string& name : class_names_) {  // as files and folders may have them
        std::replace_if(
            name.begin(), name.end(), [](unsigned char c) { return c < ' '; }, ' ');
      }
      return {};
    });
  }
  TextView ClassName(uint32_t target, int64_t number) const noexcept final {
    const auto at = static_cast<size_t>(number);
    return target == 0 && at < class_names_.size() ? TextView(class_names_[at]) : TextView();
  }
  void* Query(std::string_view id) noexcept override { return Offer<ClassNames>(id, this); }

 protected:
  ReadDataset(std::string name, const SampleTensor& input, const SampleTensor& target)
      : name_(std::move(name)), input_(input) {
    target_ = target;
  }

  // Finds out the numbers of samples and the digest, and the tensors and the names of all classes
  // if they are not known before.
  virtual Status Read() = 0;

  // Constant after Open.
  const std::string name_;
  SampleTensor input_;
  SampleTensor targets_[2] = {{}, {.name = kSampleWeight, .shape = {}}};
  SampleTensor& target_ = targets_[0];
  bool has_weight_ = false;
  bool knows_samples_ = true;  // what tensors they have
  std::vector<std::string> class_names_;
  uint64_t seed_ = 1;
  int64_t train_samples_ = 0, held_out_samples_ = 0;
  std::string digest_;
};

// Samples of `context` tokens and, as targets, the token that follows each of them. Sample i of
// what is trained on begins at i * context + offset, where the offset, less than `context`, depends
// on seed and epoch: so every epoch cuts the text in other places. Samples for evaluation begin at
// i * context.
class TokenDataset : public ReadDataset {
 protected:
  // What its messages say.
  struct Words {
    const char *tokens, *where, *advice;
  };

  TokenDataset(std::string name, const Options& options, int64_t classes, TensorContent content)
      : ReadDataset(std::move(name), TokenTensor("input", options, classes, content),
                    TokenTensor("target", options, classes, content)),
        context_(options.Int("context")),
        holdout_(options.Float("holdout")) {}

  int64_t OffsetIn(const FillCall& call) const noexcept {
    if (call.split != Split::kTrain) return 0;
    return static_cast<int64_t>(RandomBits({seed_, call.epoch}) % static_cast<uint64_t>(context_));
  }

  // In `tokens` tokens, so that the last sample ends, with its last target, inside of them where
  // samples begin up to `offsets` - 1 tokens later.
  int64_t SamplesIn(int64_t tokens, int64_t offsets) const noexcept {
    return std::max<int64_t>(tokens - offsets, 0) / context_;
  }

  // kBadData when there are no samples to train on, or none to evaluate on although they are
  // wanted.
  Status CheckSamples(const std::string& path, int64_t train_tokens, int64_t held_out_tokens,
                      bool evaluates, const Words& words) const {
    const bool trains = train_samples_ > 0;
    if (trains && (held_out_samples_ > 0 || !evaluates)) return {};
    return Status::Error(StatusCode::kBadData,
                         "%s: %" PRId64 " %s to %s, of which a context of %" PRId64
                         " needs at least %" PRId64 "%s; give %s",
                         path.c_str(), trains ? held_out_tokens : train_tokens, words.tokens,
                         trains ? "evaluate on" : "train on", context_,
                         trains ? context_ + 1 : 2 * context_, words.where, words.advice);
  }

  const int64_t context_;
  const double holdout_;

 private:
  static SampleTensor TokenTensor(const char* name, const Options& options, int64_t classes,
                                  TensorContent content) {
    return {.name = name,
            .shape = {options.Int("context")},
            .dtype = DType::kInt32,
            .content = content,
            .classes = classes};
  }
};

}  // namespace engine::kit
