// What every gradient hook must hold to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/hook/hook_rig.h"
#include "tools/conform/saved_state.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/gradient_hook.h";

class Hook : public testing::Test {
 protected:
  static std::unique_ptr<GradientHook> Ready() {
    auto hook = Make<GradientHook>();
    Must(hook->Setup(kGradients));
    return hook;
  }
  HookScope scope() const { return hook_->traits().scope; }

  const std::unique_ptr<GradientHook> hook_ = Ready();
};

void ExpectEqual(const std::vector<Gradient>& one, const std::vector<Gradient>& other) {
  for (size_t p = 0; p < one.size(); ++p) {
    ASSERT_EQ(one[p].data, other[p].data) << one[p].name;
    ASSERT_EQ(one[p].scale, other[p].scale) << one[p].name;
  }
}

TEST_F(Hook, KeepsGradientsFinite) {
  MUST("Finite gradients stay finite.");
  uint64_t step = 0;
  for (const uint32_t seed : Seeds(10)) {
    auto gradients = RandomGradients(seed);
    Must(RunHook(*hook_, gradients, ++step));
    for (const Gradient& gradient : gradients) {
      for (size_t i = 0; i < gradient.data.size(); ++i) {
        ASSERT_TRUE(std::isfinite(gradient.Value(i))) << gradient.name << " element " << i;
      }
    }
  }
}

// Transfers end in another order on each rank and in each step, and parameters must not drift apart.
TEST_F(Hook, GivesTheSameBitsInAnyOrder) {
  MUST(
      "Gradients come in any order, and in another one on each rank and in each step: the result "
      "has the same bits.");
  for (const uint32_t seed : Seeds(2)) {
    std::mt19937 random(seed);
    const bool cut = seed % 2 == 0 && scope() != HookScope::kTensor;
    const auto one = Ready(), other = Ready();
    for (uint64_t step = 1; step <= 50; ++step) {
      auto expected = RandomGradients(seed), gradients = expected;
      auto spans = cut ? RandomSpans(expected, random) : WholeSpans(expected);
      auto shuffled = spans;
      std::shuffle(shuffled.begin(), shuffled.end(), random);
      Must(RunHook(*one, expected, step, spans));
      Must(RunHook(*other, gradients, step, shuffled));
      for (const GradientSpan& span : shuffled) {
        ASSERT_EQ(span.scale, std::ranges::find_if(spans, [&](const GradientSpan& same) {
                                return same.parameter == span.parameter &&
                                       same.offset == span.offset;
                              })->scale);
      }
      ExpectEqual(gradients, expected);
    }
  }
}

// A step may not reach every gradient.
TEST_F(Hook, RemembersOnlyWhatItSaves) {
  MUST(
      "What a step leaves in the hook is what SavedState keeps: a run that goes on from a "
      "checkpoint has another object.");
  uint64_t step = 0;
  for (const uint32_t seed : Seeds(10)) {
    auto gradients = RandomGradients(seed);
    Must(RunHook(*hook_, gradients, ++step));
    const auto fresh = Ready();
    CarryState(*hook_, *fresh);
    auto expected = RandomGradients(seed + 1);
    gradients = expected;
    const auto all = WholeSpans(gradients);
    std::vector<GradientSpan> some = {all[1], all[4]}, same = some;
    Must(RunHook(*hook_, gradients, ++step, some));
    Must(RunHook(*fresh, expected, step, same));
    ExpectEqual(gradients, expected);
    for (size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i].scale, same[i].scale);
  }
}

TEST_F(Hook, WritesNothingBesideTheGradient) {
  MUST("Apply changes `count` elements of data, one scale, and nothing else.");
  constexpr float kMargin = 12345;
  for (const int64_t count : {1, 3, 16, 1001}) {
    constexpr int64_t kSide = 64;
    std::vector<float> memory(static_cast<size_t>(count + 2 * kSide), kMargin);
    std::fill_n(memory.begin() + kSide, count, 0.5f);
    float scales[] = {kMargin, 1, kMargin};
    const GradientView view{
        .name = "layer.weight", .data = memory.data() + kSide, .count = count, .scale = scales + 1};
    Must(hook_->BeginStep(1));
    if (scope() == HookScope::kGlobal) Must(hook_->Observe(view));
    Must(hook_->Apply(view));
    EXPECT_EQ(std::count(memory.begin(), memory.begin() + kSide, kMargin), kSide);
    EXPECT_EQ(std::count(memory.end() - kSide, memory.end(), kMargin), kSide);
    EXPECT_TRUE(scales[0] == kMargin && scales[2] == kMargin);
  }
}

// Relative to the largest element: the sums that a global hook makes round in another order.
void ExpectNear(const std::vector<Gradient>& result, const std::vector<GradientSpan>& spans,
                const std::vector<Gradient>& expected) {
  for (const GradientSpan& span : spans) {
    const Gradient& gradient = expected[span.parameter];
    for (int64_t i = span.offset; i < span.offset + span.count; ++i) {
      const auto at = static_cast<size_t>(i);
      const double value = double{result[span.parameter].data[at]} * span.scale;
      ASSERT_NEAR(value, gradient.Value(at), 1e-6 * (1 + std::fabs(gradient.Value(at))))
          << gradient.name << " element " << i;
    }
  }
}

// Gradients come in spans: as transfers end, and in sharded runs only a part on each rank.
TEST_F(Hook, DoesToSpansWhatItDoesToTheWhole) {
  MUST(
      "kSpan: Apply works element by element, on any span of a gradient; kGlobal: spans are shown "
      "to Observe and given to Apply in any cut.");
  if (scope() == HookScope::kTensor) GTEST_SKIP() << "this hook asks for whole gradients";
  const auto whole = Ready();
  uint64_t step = 0;
  for (const uint32_t seed : Seeds(50)) {
    std::mt19937 random(seed);
    auto expected = RandomGradients(seed), gradients = expected;
    Must(RunHook(*whole, expected, ++step));
    auto spans = RandomSpans(gradients, random);
    Must(RunHook(*hook_, gradients, step, spans));
    ExpectNear(gradients, spans, expected);
    if (scope() == HookScope::kGlobal) continue;
    for (const GradientSpan& span : spans) {  // element by element: no bit may differ
      ASSERT_EQ(span.scale, expected[span.parameter].scale);
      ASSERT_EQ(gradients[span.parameter].data, expected[span.parameter].data);
    }
  }
}

TEST_F(Hook, GivesTheResultOfOneRankWhenRanksSumWhatTheyObserved) {
  MUST(
      "Observed: at most 16 numbers, the same number of them in every step, whose sum over the "
      "ranks Apply uses.");
  if (scope() != HookScope::kGlobal) GTEST_SKIP() << "this hook observes nothing";
  const auto whole = Ready();
  std::vector<std::unique_ptr<GradientHook>> ranks;
  for (int r = 0; r < 3; ++r) ranks.push_back(Ready());
  std::set<size_t> number_counts;
  uint64_t step = 0;
  for (const uint32_t seed : Seeds(50)) {
    std::mt19937 random(seed);
    auto expected = RandomGradients(seed), gradients = expected;
    Must(RunHook(*whole, expected, ++step));
    std::vector<std::vector<GradientSpan>> shares(3);
    for (const GradientSpan& span : RandomSpans(gradients, random)) {
      shares[seed % 7 == 0 ? 1 : random() % 3].push_back(span);  // some ranks may have no part
    }
    size_t number_count = 0;
    Must(RunHookSharded(ranks, gradients, step, shares, &number_count));
    number_counts.insert(number_count);
    for (const auto& share : shares) ExpectNear(gradients, share, expected);
  }
  EXPECT_EQ(number_counts.size(), 1u) << "the same number of them in every step";
}

}  // namespace
}  // namespace engine::conform
