// What every hook that says how gradients travel must hold to. ENGINE_CONFORMANCE_PLUGINS as in
// hook_conformance_test.cc.
#include <cmath>
#include <numeric>

#include "tests/conformance/hook/wire_rig.h"

namespace engine::test {
namespace {

constexpr int64_t kCounts[] = {1, 2, 15, 16, 31, 100, 1003, 5000};

std::vector<float> RandomValues(uint32_t seed, int64_t count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = normal(random);
  return values;
}

class WireConformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    hook_ = MakeHook(GetParam());
    if (hook_->traits().stage != HookStage::kWire) GTEST_SKIP() << "gradients travel as they are";
    wire_ = WireOf(*hook_);
    ASSERT_NE(wire_, nullptr) << "no " << WireFormat::kId;
    ASSERT_TRUE(hook_->Setup(1).ok() && hook_->BeginStep(1).ok());
  }
  bool packed() const { return wire_->wire_traits().kind == WireKind::kPacked; }

  std::unique_ptr<GradientHook> hook_;
  WireFormat* wire_ = nullptr;
};

TEST_P(WireConformance, DescribesItsForm) {
  const WireTraits traits = wire_->wire_traits();
  ASSERT_GE(traits.state_count, 0);
  ASSERT_LE(traits.state_count, kMaxWireStates);
  for (int32_t s = 0; s < traits.state_count; ++s) EXPECT_NE(traits.state_names[s].view(), "");
  for (const int64_t count : kCounts) {
    EXPECT_GT(WireBytes(*wire_, count), 0) << count;
    EXPECT_EQ(WireBytes(*wire_, count), WireBytes(*wire_, count));
  }
}

TEST_P(WireConformance, PackWritesAllOfTheWireAndNothingElse) {
  for (const int64_t count : kCounts) {
    SCOPED_TRACE("elements " + std::to_string(count));
    const std::vector<float> values = RandomValues(1, count);
    WireSpan one(*wire_, values), other(*wire_, values);
    const auto bytes = Pack(*wire_, one, 0x00);
    EXPECT_EQ(Pack(*wire_, other, 0xff), bytes) << "some bytes were not written";
    EXPECT_EQ(one.gradient, values) << "the gradient was changed";
  }
}

TEST_P(WireConformance, UnpackReplacesWhatWasThere) {
  for (const int64_t count : kCounts) {
    WireSpan span(*wire_, RandomValues(2, count));
    const auto bytes = Pack(*wire_, span);
    const auto result = Unpack(*wire_, bytes, std::vector<float>(span.gradient.size(), 0));
    EXPECT_EQ(Unpack(*wire_, bytes, RandomValues(3, count)), result) << count;
    for (const float x : result) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(WireConformance, UnpackOfFurtherRanksAdds) {
  if (!packed()) GTEST_SKIP() << "the communicator adds";
  for (const int64_t count : kCounts) {
    WireSpan one(*wire_, RandomValues(4, count)), other(*wire_, RandomValues(5, count));
    const std::vector<float> zeros(one.gradient.size(), 0);
    const auto first = Unpack(*wire_, Pack(*wire_, one), zeros);
    const auto bytes = Pack(*wire_, other);
    const auto second = Unpack(*wire_, bytes, zeros);
    const auto sum = Unpack(*wire_, bytes, first, /*accumulate=*/1);
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], first[i] + second[i]) << i;
  }
}

// Sharded updates: each rank takes its part of what arrived.
TEST_P(WireConformance, ACastCanBeUnpackedInParts) {
  if (packed()) GTEST_SKIP() << "packed spans are unpacked whole";
  WireSpan span(*wire_, RandomValues(6, 1003));
  WireBytesOf wire(*wire_, span.count());
  ASSERT_TRUE(wire_->Pack(span.Call(wire.data())).ok());
  WireSpan whole(*wire_, std::vector<float>(1003)), parts = whole;
  ASSERT_TRUE(wire_->Unpack(whole.Call(wire.data())).ok());
  for (int64_t begin = 0, count = 1; begin < 1003; begin += count, count = 2 * count + 1) {
    WireCall call = parts.Call(wire.data());
    call.offset = begin;
    call.count = std::min<int64_t>(count, 1003 - begin);
    call.gradient += begin;
    call.wire = wire.data() + WireBytes(*wire_, begin);
    for (float*& state : call.states) state = state == nullptr ? nullptr : state + begin;
    ASSERT_TRUE(wire_->Unpack(call).ok());
  }
  EXPECT_EQ(parts.gradient, whole.gradient);
}

// Spans come in another order in each step and on each rank; and a run that goes on from a
// checkpoint has new objects and the old states.
TEST_P(WireConformance, RemembersOnlyInItsStates) {
  std::vector<WireSpan> spans, resumed;
  for (const int64_t count : kCounts) spans.emplace_back(*wire_, RandomValues(7, count));
  resumed = spans;
  std::mt19937 random(8);
  for (uint32_t step = 1; step <= 10; ++step) {
    const auto fresh = MakeHook(GetParam());
    Must(fresh->Setup(1));
    ASSERT_TRUE(hook_->BeginStep(step).ok() && fresh->BeginStep(step).ok());
    std::vector<size_t> order(spans.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::vector<uint8_t>> expected(spans.size());
    for (size_t i = 0; i < spans.size(); ++i) {
      spans[i].gradient = resumed[i].gradient = RandomValues(100 * step, spans[i].count());
      expected[i] = Pack(*wire_, spans[i]);
    }
    for (const size_t i : order) {
      ASSERT_EQ(Pack(*WireOf(*fresh), resumed[i]), expected[i]) << "step " << step;
      for (int32_t s = 0; s < kMaxWireStates; ++s) {
        ASSERT_EQ(resumed[i].states[s], spans[i].states[s]) << "step " << step;
      }
    }
  }
}

// Steps with many targets and with few, and loss scales: powers of two, so that nothing is rounded.
TEST_P(WireConformance, StatesAreInTheUnitOfTheMean) {
  if (wire_->wire_traits().state_count == 0) GTEST_SKIP() << "it has to do with sums alone";
  const std::vector<float> zeros(1003, 0);
  WireSpan mean(*wire_, zeros), sum = mean;
  for (uint32_t step = 0; step < 20; ++step) {
    const float divisor = std::ldexp(1.0f, static_cast<int>(step * 7 % 20));
    mean.gradient = sum.gradient = RandomValues(step, mean.count());
    for (float& x : sum.gradient) x *= divisor;
    sum.scale = 1 / divisor;
    auto expected = Unpack(*wire_, Pack(*wire_, mean), zeros);
    for (float& x : expected) x *= divisor;
    ASSERT_EQ(Unpack(*wire_, Pack(*wire_, sum), zeros), expected) << "step " << step;
    for (int32_t s = 0; s < kMaxWireStates; ++s) ASSERT_EQ(sum.states[s], mean.states[s]);
  }
}

// Nothing is lost for good: over many steps with one gradient, what arrives tends to it.
TEST_P(WireConformance, WhatArrivesTendsToTheGradient) {
  constexpr int64_t kCount = 64;
  constexpr int kSteps = 2000;
  WireSpan span(*wire_, RandomValues(9, kCount));
  std::vector<double> sum(kCount, 0);
  for (int step = 0; step < kSteps; ++step) {
    const auto arrived = Unpack(*wire_, Pack(*wire_, span), std::vector<float>(kCount));
    for (size_t i = 0; i < kCount; ++i) sum[i] += arrived[i];
  }
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(sum[i] / kSteps, span.gradient[i], 0.06) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, WireConformance,
                         testing::ValuesIn(PluginPaths({"cast_bf16", "cast_fp16", "topk"})));

}  // namespace
}  // namespace engine::test
