// Gradients come in spans: as transfers end, and in sharded runs only a part on each rank.
// ENGINE_CONFORMANCE_PLUGINS as in hook_conformance_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/conformance/hook/hook_rig.h"

namespace engine::test {
namespace {

class HookOnSpans : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    hook_ = MakeHook(GetParam());
    whole_ = MakeHook(GetParam());
    ASSERT_TRUE(hook_ && whole_);
    const auto count = static_cast<uint32_t>(RandomGradients(1).size());
    ASSERT_TRUE(hook_->Setup(count).ok());
    ASSERT_TRUE(whole_->Setup(count).ok());
    if (hook_->traits().scope == HookScope::kTensor) {
      GTEST_SKIP() << "this hook asks for whole gradients";
    }
  }
  bool is_global() const { return hook_->traits().scope == HookScope::kGlobal; }

  std::unique_ptr<GradientHook> hook_, whole_;
};

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

TEST_P(HookOnSpans, DoesToThemWhatItDoesToTheWhole) {
  std::mt19937 random(11);
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " after cuts with seed 11");
    auto expected = RandomGradients(seed);
    ASSERT_TRUE(RunHook(*whole_, expected, seed, InOrder(expected)).ok());
    auto gradients = RandomGradients(seed);
    auto spans = RandomSpans(gradients, random);
    ASSERT_TRUE(RunHookOnSpans(*hook_, gradients, seed, spans).ok());
    ExpectNear(gradients, spans, expected);
    if (is_global()) continue;
    for (const GradientSpan& span : spans) {  // element by element: no bit may differ
      ASSERT_EQ(span.scale, expected[span.parameter].scale);
      ASSERT_EQ(gradients[span.parameter].data, expected[span.parameter].data);
    }
  }
}

// Transfers end in another order on each rank, and parameters must not drift apart.
TEST_P(HookOnSpans, GivesTheSameBitsInAnyOrder) {
  std::mt19937 random(12);
  auto expected = RandomGradients(1);
  std::vector<GradientSpan> spans = RandomSpans(expected, random);
  const std::vector<GradientSpan> unscaled = spans;
  ASSERT_TRUE(RunHookOnSpans(*hook_, expected, 1, spans).ok());
  for (uint64_t step = 2; step <= 50; ++step) {
    SCOPED_TRACE("step " + std::to_string(step) + ", orders shuffled with seed 12");
    std::vector<size_t> order(spans.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<GradientSpan> shuffled;
    for (size_t i : order) shuffled.push_back(unscaled[i]);
    auto gradients = RandomGradients(1);
    ASSERT_TRUE(RunHookOnSpans(*hook_, gradients, step, shuffled).ok());
    for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(shuffled[i].scale, spans[order[i]].scale);
    for (size_t p = 0; p < gradients.size(); ++p) ASSERT_EQ(gradients[p].data, expected[p].data);
  }
}

TEST_P(HookOnSpans, GivesTheResultOfOneRankWhenRanksSumWhatTheyObserved) {
  if (!is_global()) GTEST_SKIP() << "this hook observes nothing";
  std::vector<std::unique_ptr<GradientHook>> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(MakeHook(GetParam()));
    ASSERT_TRUE(ranks.back() && ranks.back()->Setup(5).ok());
  }
  std::mt19937 random(13);
  std::set<size_t> number_counts;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " after shares with seed 13");
    auto expected = RandomGradients(seed);
    ASSERT_TRUE(RunHook(*whole_, expected, seed, InOrder(expected)).ok());
    auto gradients = RandomGradients(seed);
    std::vector<std::vector<GradientSpan>> shares(3);
    for (const GradientSpan& span : RandomSpans(gradients, random)) {
      shares[seed % 7 == 0 ? 1 : random() % 3].push_back(span);  // some ranks may have no part
    }
    size_t number_count = 0;
    const Status status = RunHookSharded(ranks, gradients, seed, shares, &number_count);
    ASSERT_TRUE(status.ok()) << status.message();
    number_counts.insert(number_count);
    for (const auto& share : shares) ExpectNear(gradients, share, expected);
  }
  EXPECT_EQ(number_counts.size(), 1u) << "the same number of them in every step";
}

INSTANTIATE_TEST_SUITE_P(Plugins, HookOnSpans,
                         testing::ValuesIn(PluginPaths({"clip_value", "clip_norm"})));

}  // namespace
}  // namespace engine::test
