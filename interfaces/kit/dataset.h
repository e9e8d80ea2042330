// Parts to build datasets from: the share that is held out, and what most datasets are.
// Compiled into the plugin that includes it and no part of the ABI.
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cwchar>
#include <locale>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/dataset.h"
#include "engine/ext/class_names.h"
#include "engine/options.h"
#include "kit/options.h"

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

// UTF-8 without surrogates, which the decoder of the C++ library lets pass: they are 0xed and a byte
// from 0xa0 on.
inline bool IsUtf8(std::string_view text) {
  using Decoder = std::codecvt<char32_t, char8_t, std::mbstate_t>;
  const auto* const begin = reinterpret_cast<const char8_t*>(text.data());
  std::mbstate_t state{};
  const auto good = std::use_facet<Decoder>(std::locale::classic())
                        .length(state, begin, begin + text.size(), text.size());
  for (size_t i = 1; i < text.size(); ++i) {
    if (begin[i - 1] == 0xed && begin[i] >= 0xa0) return false;
  }
  return static_cast<size_t>(good) == text.size();
}

// The option `holdout` of those that read files.
constexpr OptionSpec HoldoutOption(OptionDoc doc) noexcept {
  return FloatOption("holdout", "0.1", 0, 0.999, doc);
}

// How many of `size` are held out for evaluation, to the nearest.
inline int64_t HoldoutCount(int64_t size, double share) {
  return std::llround(static_cast<double>(size) * share);
}

// A row is held out if a random number of seed and row is below the share: rows that are sorted, by
// class or by time, need no shuffling before, and a row stays where it is when others are added
// behind it. `seed` is that of the run (Dataset::Open), so that all ranks, and a run that goes on,
// hold out the same rows; another seed trains on rows that this one has evaluated on.
class RowSplit {
 public:
  RowSplit() = default;  // of no rows
  RowSplit(int64_t rows, double share, uint64_t seed) : rows_(rows) {
    constexpr uint64_t kStream = 5;  // of the seed, beside those of the engine
    for (int64_t row = 0; row < rows && share > 0; ++row) {
      const uint64_t bits = RandomBits({seed, kStream, static_cast<uint64_t>(row)});
      if (static_cast<double>(bits >> 11) * 0x1p-53 < share) held_out_.push_back(row);
    }
  }

  // About the share of the rows is held out: each is drawn for itself. [any-thread]
  int64_t count(Split split) const noexcept {
    const auto held_out = static_cast<int64_t>(held_out_.size());
    return split == Split::kHeldOut ? held_out : rows_ - held_out;
  }

  // The row that sample `index`, less than count(split), is: rows keep their order. [any-thread]
  int64_t Row(Split split, int64_t index) const noexcept {
    if (split == Split::kHeldOut) return held_out_[static_cast<size_t>(index)];
    // Before the held-out row held_out_[k] there are held_out_[k] - k to train on, which never
    // falls with k.
    const int64_t* const first = held_out_.data();
    const auto* const behind =
        std::partition_point(first, first + held_out_.size(),
                             [=](const int64_t& row) { return row - (&row - first) <= index; });
    return index + (behind - first);
  }

 private:
  int64_t rows_ = 0;
  std::vector<int64_t> held_out_;  // rows in their order
};

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
      if (train_samples_ == 0 && held_out_samples_ > 0) {
        return Status::Error(StatusCode::kBadData,
                             "%s: its %" PRId64 " samples are all held out; lower holdout",
                             name_.c_str(), held_out_samples_);
      }
      for (std::string& name : class_names_) ENGINE_RETURN_IF_ERROR(CleanName(&name));
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

 private:
  // Of a class, which files and folders may call anything. kBadData if it is not UTF-8, which
  // checkpoints are.
  Status CleanName(std::string* name) const {
    const bool good = IsUtf8(*name);
    std::replace_if(
        name->begin(), name->end(), [=](uint8_t c) { return c < ' ' || (!good && c > '~'); }, '?');
    if (good) return {};
    return Status::Error(StatusCode::kBadData,
                         "%s: the name of the class '%s' is not UTF-8; rename its folder, or save "
                         "the file that has it as UTF-8",
                         name_.c_str(), name->c_str());
  }
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
