#include "core/data/synthetic.h"

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <vector>

#include "core/data/random.h"

namespace engine {
namespace {

constexpr int64_t kRuleInputs = 64;
constexpr int64_t kMaxSampleCount = int64_t{1} << 40;  // of samples, and of the numbers in one
constexpr int64_t kMaxClasses = 1 << 20;
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
  explicit Rule(const SyntheticOptions& options)
      : inputs_(std::min(options.shape.Count(), kRuleInputs)),
        weights_(static_cast<size_t>(options.classes * inputs_)) {
    const uint64_t stream = RandomBits({options.seed, kRuleStream});
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

class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(const SyntheticOptions& options, std::shared_ptr<const Rule> rule, int64_t size,
                   uint64_t stream)
      : rule_(std::move(rule)), seed_(options.seed), stream_(stream) {
    info_.name = "synthetic";
    info_.size = size;
    info_.input_shape = options.shape;
    info_.classes = options.classes;
  }

  const DatasetInfo& info() const override { return info_; }

  Status Get(uint64_t, int64_t index, void* input, int32_t* target) const override {
    const uint64_t stream = RandomBits({seed_, stream_, static_cast<uint64_t>(index)});
    float* numbers = static_cast<float*>(input);
    const int64_t count = info_.input_shape.Count();
    for (int64_t i = 0; i < count; ++i) numbers[i] = Uniform(stream, i);
    *target = rule_->Classify(numbers);
    return {};
  }

 private:
  const std::shared_ptr<const Rule> rule_;
  const uint64_t seed_;
  const uint64_t stream_;
  DatasetInfo info_;
};

Status CheckRange(const char* key, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return Status::Error(StatusCode::kConfig,
                       "data.synthetic.%s is %" PRId64 "; it must be %" PRId64 " to %" PRId64, key,
                       value, least, most);
}

Status CheckOptions(const SyntheticOptions& options) {
  ENGINE_RETURN_IF_ERROR(CheckRange("samples", options.samples, 1, kMaxSampleCount));
  ENGINE_RETURN_IF_ERROR(CheckRange("eval_samples", options.eval_samples, 0, kMaxSampleCount));
  ENGINE_RETURN_IF_ERROR(CheckRange("classes", options.classes, 1, kMaxClasses));
  int64_t count = 1;
  for (int32_t i = 0; i < options.shape.ndim; ++i) {
    ENGINE_RETURN_IF_ERROR(CheckRange("shape", options.shape[i], 1, kMaxSampleCount / count));
    count *= options.shape[i];
  }
  return {};
}

}  // namespace

Result<DatasetPair> OpenSynthetic(const SyntheticOptions& options) {
  ENGINE_RETURN_IF_ERROR(CheckOptions(options));
  const auto rule = std::make_shared<const Rule>(options);
  DatasetPair pair;
  pair.train = std::make_unique<SyntheticDataset>(options, rule, options.samples, kTrainStream);
  pair.eval = std::make_unique<SyntheticDataset>(options, rule, options.eval_samples, kEvalStream);
  return pair;
}

}  // namespace engine
