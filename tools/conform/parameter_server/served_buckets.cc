#include "tools/conform/parameter_server/served_buckets.h"

#include <cmath>
#include <cstring>
#include <utility>

namespace engine::conform {
namespace {

// In [-1, 1), from a mix of all that it stands for (the finaliser of splitmix64).
float Noise(uint64_t key, uint64_t rank, uint64_t step, uint64_t index) {
  uint64_t x = index + (key << 40) + (rank << 32) + step * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<float>(static_cast<int32_t>(x >> 40) - (1 << 23)) / (1 << 23);
}

class TestOptimizer final : public OptimizerBase {
 public:
  explicit TestOptimizer(int states) : states_(states) {}

  OptimizerTraits traits() const noexcept override {
    OptimizerTraits traits{.state_count = states_};
    if (states_ > 0) traits.state_names[0] = "momentum";
    if (states_ > 1) traits.state_names[1] = "square";
    return traits;
  }
  Status Update(const UpdateCall& call) noexcept override {
    const float decay = states_ > 0 ? 0.05f * call.weight_decay_scale : 0;
    for (int64_t i = 0; i < call.count; ++i) {
      float change = call.gradient[i] * call.gradient_scale;
      if (states_ > 0) change = call.states[0][i] = 0.875f * call.states[0][i] + change;
      if (states_ > 1) {
        call.states[1][i] = 0.75f * call.states[1][i] + change * change;
        change /= std::sqrt(call.states[1][i]) + 1 / static_cast<float>(call.step);
      }
      call.value[i] -= call.learning_rate * (change + decay * call.value[i]);
    }
    return {};
  }

 private:
  const int states_;
};

}  // namespace

std::unique_ptr<Optimizer> OptimizerChoice::Make() const {
  return std::make_unique<TestOptimizer>(states);
}

int64_t TestBucket::count() const {
  int64_t count = 0;
  for (const ServedSpan& span : spans) count += span.count;
  return count;
}

std::vector<float> TestBucket::Values() const {
  return Gradient(255, 0);
}

std::vector<float> TestBucket::Gradient(int rank, uint64_t step) const {
  std::vector<float> gradient(static_cast<size_t>(count()));
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = Noise(key, static_cast<uint64_t>(rank), step, i);
  }
  return gradient;
}

std::vector<float> TestBucket::Filled(float value) const {
  return std::vector<float>(static_cast<size_t>(count()), value);
}

TestBucket PlainBucket(uint64_t key, int64_t count, int64_t row) {
  return {.key = key, .spans = {{.count = count}}, .row = row};
}

std::vector<TestBucket> AwkwardBuckets() {
  return {PlainBucket(11, 1),
          {.key = 12, .spans = {{.count = 2, .weight_decay_scale = 0}, {.count = 1}}},
          {.key = 13,
           .spans = {{.count = 400001},
                     {.count = 7, .weight_decay_scale = 0},
                     {.count = 599995, .weight_decay_scale = 0.5f}}}};
}

std::vector<TestBucket> SmallBuckets() {
  return {PlainBucket(21, 1000), PlainBucket(22, 333)};
}

std::vector<ServedBucket> ServedBuckets(const std::vector<TestBucket>& buckets) {
  std::vector<ServedBucket> served;
  for (const TestBucket& bucket : buckets) served.push_back(bucket.Served());
  return served;
}

ReferenceBucket::ReferenceBucket(const TestBucket& bucket, std::shared_ptr<Optimizer> optimizer)
    : bucket_(bucket), optimizer_(std::move(optimizer)), value_(bucket.Values()) {
  states_.assign(static_cast<size_t>(optimizer_->traits().state_count), bucket.Filled(0));
}

void ReferenceBucket::Update(std::span<const Contribution> ranks, float learning_rate,
                             uint64_t step) {
  Contribution sum = ranks[0];
  for (const Contribution& rank : ranks.subspan(1)) {
    for (size_t i = 0; i < sum.gradient.size(); ++i) sum.gradient[i] += rank.gradient[i];
    sum.weight += rank.weight;
  }
  int64_t offset = 0;
  for (const ServedSpan& span : bucket_.spans) {
    UpdateCall call{.value = value_.data() + offset,
                    .gradient = sum.gradient.data() + offset,
                    .count = span.count,
                    .gradient_scale = sum.weight > 0 ? 1 / sum.weight : 1,
                    .learning_rate = learning_rate,
                    .weight_decay_scale = span.weight_decay_scale,
                    .step = step};
    for (size_t i = 0; i < states_.size(); ++i) call.states[i] = states_[i].data() + offset;
    const Status status = optimizer_->Update(call);
    EXPECT_TRUE(status.ok()) << status.message();
    offset += span.count;
  }
}

::testing::AssertionResult SameBits(const std::vector<float>& got,
                                    const std::vector<float>& expected) {
  if (got.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << got.size() << " elements instead of " << expected.size();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(float)) == 0) continue;
    return ::testing::AssertionFailure() << "element " << i << " of " << got.size() << " is "
                                         << got[i] << " instead of " << expected[i];
  }
  return ::testing::AssertionSuccess();
}

}  // namespace engine::conform
