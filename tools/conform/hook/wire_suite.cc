// What every hook that says how gradients travel must hold to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/hook/wire_rig.h"
#include "tools/conform/saved_state.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/ext/wire_format.h";

constexpr int64_t kCounts[] = {1, 2, 15, 16, 31, 100, 1003, 5000};

std::vector<float> RandomValues(uint32_t seed, int64_t count) {
  return RandomFloats(static_cast<size_t>(count), seed);
}

class Wire : public testing::Test {
 protected:
  void SetUp() override {
    wire_ = WireOf(*hook_);
    ASSERT_NE(wire_, nullptr) << "no " << WireFormat::kId;
    ASSERT_TRUE(hook_->Setup(1).ok() && hook_->BeginStep(1).ok());
  }
  bool packed() const { return wire_->wire_traits().kind == WireKind::kPacked; }

  const std::unique_ptr<GradientHook> hook_ = Make<GradientHook>();
  WireFormat* wire_ = nullptr;
};

TEST_F(Wire, DescribesItsForm) {
  MUST(
      "Traits and PackedBytes are the same every time; there are 0 to kMaxWireStates states, "
      "which have names.");
  const WireTraits traits = wire_->wire_traits();
  ASSERT_GE(traits.state_count, 0);
  ASSERT_LE(traits.state_count, kMaxWireStates);
  for (int32_t s = 0; s < traits.state_count; ++s) EXPECT_NE(traits.state_names[s].view(), "");
  for (const int64_t count : kCounts) {
    EXPECT_GT(WireBytes(*wire_, count), 0) << count;
    EXPECT_EQ(WireBytes(*wire_, count), WireBytes(*wire_, count));
  }
}

TEST_F(Wire, PackWritesAllOfTheWireAndNothingElse) {
  MUST("Pack writes `wire`, all of it, from the gradient, which stays as it is, and the states.");
  for (const int64_t count : kCounts) {
    SCOPED_TRACE("elements " + std::to_string(count));
    const std::vector<float> values = RandomValues(1, count);
    WireSpan one(*wire_, values), other(*wire_, values);
    const auto bytes = Pack(*wire_, one, 0x00);
    EXPECT_EQ(Pack(*wire_, other, 0xff), bytes) << "some bytes were not written";
    EXPECT_EQ(one.gradient, values) << "the gradient was changed";
  }
}

TEST_F(Wire, UnpackReplacesWhatWasThere) {
  MUST("Unpack without `accumulate` replaces the gradient.");
  for (const int64_t count : kCounts) {
    WireSpan span(*wire_, RandomValues(2, count));
    const auto bytes = Pack(*wire_, span);
    const auto result = Unpack(*wire_, bytes, std::vector<float>(span.gradient.size(), 0));
    EXPECT_EQ(Unpack(*wire_, bytes, RandomValues(3, count)), result) << count;
    for (const float x : result) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_F(Wire, UnpackOfFurtherRanksAdds) {
  MUST("Unpack with `accumulate` adds to the gradient.");
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
TEST_F(Wire, ACastCanBeUnpackedInParts) {
  MUST("Unpack may be given a part of what was one span for Pack when the kind is kCast.");
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
TEST_F(Wire, RemembersOnlyInItsStates) {
  MUST(
      "What a step leaves is in the states and in SavedState alone: a run that goes on from a "
      "checkpoint has another object.");
  std::vector<WireSpan> spans, resumed;
  for (const int64_t count : kCounts) spans.emplace_back(*wire_, RandomValues(7, count));
  resumed = spans;
  std::mt19937 random(8);
  for (uint32_t step = 1; step <= 10; ++step) {
    const auto fresh = Make<GradientHook>();
    Must(fresh->Setup(1));
    CarryState(*hook_, *fresh);
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
TEST_F(Wire, StatesAreInTheUnitOfTheMean) {
  MUST(
      "A state keeps gradients as the mean has them, times WireCall::scale, and what goes from it "
      "to the wire is divided by the scale of that step.");
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
TEST_F(Wire, WhatArrivesTendsToTheGradient) {
  MUST(
      "Nothing is lost for good: the mean of what arrives of one gradient tends to it over the "
      "steps, or, without states, is within 1/16 of its largest element.");
  constexpr size_t kCount = 64;
  for (const uint32_t seed : Seeds(3)) {
    WireSpan span(*wire_, RandomValues(seed, kCount));
    std::vector<double> sum(kCount, 0);
    double error_then = 0;  // after 1000 steps
    const auto error = [&](int steps) {
      double largest = 0;
      for (size_t i = 0; i < kCount; ++i) {
        largest = std::max(largest, std::fabs(sum[i] / steps - span.gradient[i]));
      }
      return largest;
    };
    for (int step = 1; step <= 4000; ++step) {
      const auto arrived = Unpack(*wire_, Pack(*wire_, span), std::vector<float>(kCount));
      for (size_t i = 0; i < kCount; ++i) sum[i] += arrived[i];
      if (step == 1000) error_then = error(step);
    }
    const auto [low, high] = std::ranges::minmax(span.gradient);
    const double largest = std::max(std::fabs(low), std::fabs(high));
    const bool keeps = wire_->wire_traits().state_count > 0;
    EXPECT_LE(error(4000), keeps ? error_then / 2 + 1e-5 * largest : largest / 16);
  }
}

// What arrives may have been cut or changed on its way.
TEST_F(Wire, UnpackRefusesOrTakesWhateverArrives) {
  MUST("Unpack gives kBadData for bytes that no Pack makes, and writes nothing but the gradient.");
  constexpr size_t kMargin = 64;
  for (const uint32_t seed : Seeds(200)) {
    std::mt19937 random(seed);
    const int64_t count = kCounts[seed % std::size(kCounts)];
    WireSpan span(*wire_, std::vector<float>(static_cast<size_t>(count) + kMargin, 7));
    WireBytesOf wire(*wire_, count);
    std::generate_n(wire.data(), WireBytes(*wire_, count), [&] { return random() % 256; });
    WireCall call = span.Call(wire.data());
    call.count = count;
    const Status status = wire_->Unpack(call);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kBadData) << status.message();
    EXPECT_EQ(std::count(span.gradient.end() - kMargin, span.gradient.end(), 7), kMargin);
  }
}

}  // namespace
}  // namespace engine::conform
