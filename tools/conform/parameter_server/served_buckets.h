// Buckets with values and gradients that are made up, and what an optimizer must make of them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "tools/conform/plugin_under_test.h"

namespace engine::conform {

// Without states: value -= learning_rate * gradient * gradient_scale. With one or two, momentum and
// a mean square, it depends on the step and on weight decay too.
struct OptimizerChoice {
  int states = 0;

  std::unique_ptr<Optimizer> Make() const;
};

// The optimizers that bit-for-bit checks use.
inline constexpr OptimizerChoice kDemandingOptimizers[] = {{1}, {2}};

struct TestBucket {
  uint64_t key = 0;
  std::vector<ServedSpan> spans;
  int64_t row = 0;

  int64_t count() const;
  ServedBucket Served() const { return {key, count(), spans, row}; }
  std::vector<float> Values() const;                           // at the start
  std::vector<float> Gradient(int rank, uint64_t step) const;  // in [-1, 1)
  std::vector<float> Filled(float value) const;
};

// One span of weight decay scale 1.
TestBucket PlainBucket(uint64_t key, int64_t count, int64_t row = 0);

// Buckets of awkward sizes; the largest is several spans with different decay.
std::vector<TestBucket> AwkwardBuckets();
// Two small ones.
std::vector<TestBucket> SmallBuckets();

// Borrows the spans.
std::vector<ServedBucket> ServedBuckets(const std::vector<TestBucket>& buckets);

// What one rank brings to an update.
struct Contribution {
  std::vector<float> gradient;
  float weight = 1;
};

// A bucket as one process would train it.
class ReferenceBucket {
 public:
  ReferenceBucket(const TestBucket& bucket, std::shared_ptr<Optimizer> optimizer);

  // One update of the contributions of all ranks, added in rank order.
  void Update(std::span<const Contribution> ranks, float learning_rate, uint64_t step);

  const std::vector<float>& value() const { return value_; }
  const std::vector<std::vector<float>>& states() const { return states_; }

 private:
  const TestBucket bucket_;
  const std::shared_ptr<Optimizer> optimizer_;
  std::vector<float> value_;
  std::vector<std::vector<float>> states_;
};

// Bit for bit; reports the first element that differs.
::testing::AssertionResult SameBits(const std::vector<float>& got,
                                    const std::vector<float>& expected);

}  // namespace engine::conform
