// synthetic: random numbers with a rule behind them; nothing is read.
//
// Inputs are uniform with mean 0 and standard deviation 1. The class is the largest of `classes`
// fixed random linear functions of the first 64 numbers of the sample, so that a large sample is as
// cheap to label as a small one and one linear layer can learn the rule.
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/options.h"

namespace engine::synthetic {
namespace {

constexpr int64_t kRuleInputs = 64;
constexpr int64_t kMaxSampleNumbers = int64_t{1} << 40;
constexpr uint64_t kRuleStream = 1, kTrainStream = 2, kEvalStream = 3;

// Number `i` of a stream: uniform in [-sqrt(3), sqrt(3)), from the upper 24 bits.
float Uniform(uint64_t stream, int64_t i) noexcept {
  constexpr float kSqrt3 = 1.7320508f;
  const uint64_t bits = MixBits(stream + static_cast<uint64_t>(i)) >> 40;
  return (static_cast<float>(bits) * 0x1p-23f - 1.0f) * kSqrt3;
}

// Row c holds the weights of class c.
class Rule {
 public:
  Rule(int64_t numbers, int64_t classes, uint64_t seed)
      : inputs_(std::min(numbers, kRuleInputs)), weights_(static_cast<size_t>(classes * inputs_)) {
    const uint64_t stream = RandomBits({seed, kRuleStream});
    for (size_t i = 0; i < weights_.size(); ++i) {
      weights_[i] = Uniform(stream, static_cast<int64_t>(i));
    }
  }

  int32_t Classify(const float* sample) const noexcept {
    int32_t best = 0;
    double best_score = 0;
    const int32_t classes = static_cast<int32_t>(static_cast<int64_t>(weights_.size()) / inputs_);
    for (int32_t c = 0; c < classes; ++c) {
      double score = 0;
      for (int64_t i = 0; i < inputs_; ++i) {
        score += double{weights_[static_cast<size_t>(c * inputs_ + i)]} * double{sample[i]};
      }
      if (c == 0 || score > best_score) {
        best = c;
        best_score = score;
      }
    }
    return best;
  }

 private:
  const int64_t inputs_;
  std::vector<float> weights_;
};

class Synthetic final : public kit::ReadDataset {
 public:
  Synthetic(const Options& options, const Shape& shape)
      : ReadDataset("synthetic",
                    {.name = "input",
                     .shape = shape,
                     .content = shape.ndim == 3 ? TensorContent::kImage : TensorContent::kNumbers},
                    {.name = "class",
                     .shape = {},
                     .dtype = DType::kInt32,
                     .classes = options.Int("classes")}) {
    train_samples_ = options.Int("samples");
    held_out_samples_ = options.Int("eval_samples");
  }

  Status Fill(const FillCall& call) const noexcept override {
    const uint64_t stream = call.split == Split::kTrain ? kTrainStream : kEvalStream;
    const int64_t count = input_.shape.Count();
    auto* numbers = static_cast<float*>(call.tensors[0]);
    auto* target = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      const uint64_t sample = RandomBits({seed_, stream, static_cast<uint64_t>(index)});
      for (int64_t i = 0; i < count; ++i) numbers[i] = Uniform(sample, i);
      *target++ = rule_->Classify(numbers);
      numbers += count;
    }
    return {};
  }

 private:
  Status Read() override {
    rule_.emplace(input_.shape.Count(), target_.classes, seed_);
    return {};
  }

  std::optional<const Rule> rule_;  // constant after Open
};

StatusValue Create(Host&, const Options& options, Object** out) noexcept {
  const std::span<const int64_t> extents = options.Ints("shape");
  if (extents.size() >= kMaxDims) {
    return Status::Error(StatusCode::kConfig,
                         "data.synthetic.shape has %zu extents; at most %d can be used",
                         extents.size(), kMaxDims - 1);
  }
  Shape shape;
  int64_t count = 1;
  for (const int64_t extent : extents) {
    if (extent > kMaxSampleNumbers / count) {
      return Status::Error(StatusCode::kConfig,
                           "data.synthetic.shape says more than 2^40 numbers; lower its extents");
    }
    count *= extent;
    shape[shape.ndim++] = extent;
  }
  return kit::Make<Synthetic>(out, options, shape);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kDataset, "synthetic", "1.0.0",
    "random numbers with a rule behind them that can be learned; nothing is read", Create,
    std::array{kit::IntOption("samples", "1024", 1, 1e12, "to train on"),
               kit::IntOption("eval_samples", "256", 0, 1e12, "to evaluate on"),
               kit::IntsOption("shape", "32", 1, 1 << 30, "of one sample"),
               kit::IntOption("classes", "10", 2, 1 << 20, "of the targets")});

}  // namespace engine::synthetic
