// What every gradient hook must hold to. ENGINE_CONFORMANCE_PLUGINS=<library>[:<library>...] judges
// others than those of this build.
#include <cmath>
#include <numeric>
#include <set>

#include "tests/conformance/hook/hook_rig.h"

namespace engine::test {
namespace {

constexpr uint32_t kGradients = 5;  // RandomGradients

class HookConformance : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<GradientHook> Make() {
    auto hook = MakeHook(GetParam());
    Must(hook->Setup(kGradients));
    return hook;
  }
  bool is_global() const { return hook_->traits().scope == HookScope::kGlobal; }

  const std::unique_ptr<GradientHook> hook_ = Make();
};

void ExpectEqual(const std::vector<Gradient>& one, const std::vector<Gradient>& other) {
  for (size_t p = 0; p < one.size(); ++p) {
    ASSERT_EQ(one[p].data, other[p].data) << one[p].name;
    ASSERT_EQ(one[p].scale, other[p].scale) << one[p].name;
  }
}

TEST_P(HookConformance, DescribesItself) {
  ExpectDescribed(GetParam(), PluginKind::kHook);
}

TEST_P(HookConformance, KeepsGradientsFinite) {
  for (uint64_t step = 1; step <= 3; ++step) {
    auto gradients = RandomGradients(static_cast<uint32_t>(step));
    Must(RunHook(*hook_, gradients, step));
    for (const Gradient& gradient : gradients) {
      for (size_t i = 0; i < gradient.data.size(); ++i) {
        ASSERT_TRUE(std::isfinite(gradient.Value(i)));
      }
    }
  }
}

// Transfers end in another order on each rank and in each step, and parameters must not drift apart.
TEST_P(HookConformance, GivesTheSameBitsInAnyOrder) {
  std::mt19937 random(12);
  for (const bool cut : {false, true}) {
    if (cut && hook_->traits().scope == HookScope::kTensor) break;
    auto expected = RandomGradients(1);
    auto spans = cut ? RandomSpans(expected, random) : WholeSpans(expected);
    const auto unscaled = spans;
    Must(RunHook(*hook_, expected, 1, spans));
    for (uint64_t step = 2; step <= 50; ++step) {
      SCOPED_TRACE("step " + std::to_string(step) + ", orders shuffled with seed 12");
      std::vector<size_t> order(spans.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<GradientSpan> shuffled;
      for (size_t i : order) shuffled.push_back(unscaled[i]);
      auto gradients = RandomGradients(1);
      Must(RunHook(*hook_, gradients, step, shuffled));
      for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(shuffled[i].scale, spans[order[i]].scale);
      ExpectEqual(gradients, expected);
    }
  }
}

// A step may not reach every gradient, and what one step showed must not be seen in the next.
TEST_P(HookConformance, RemembersNothingOfTheStepBefore) {
  const auto fresh = Make();
  auto gradients = RandomGradients(1);
  Must(RunHook(*hook_, gradients, 1));
  auto expected = RandomGradients(2);
  gradients = RandomGradients(2);
  const auto all = WholeSpans(gradients);
  std::vector<GradientSpan> some = {all[1], all[4]}, same = some;
  Must(RunHook(*hook_, gradients, 2, some));
  Must(RunHook(*fresh, expected, 2, same));
  ExpectEqual(gradients, expected);
  for (size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i].scale, same[i].scale);
}

INSTANTIATE_TEST_SUITE_P(Plugins, HookConformance,
                         testing::ValuesIn(PluginPaths({"clip_value", "clip_norm", "cast_bf16",
                                                        "cast_fp16", "topk"})));

// Gradients come in spans: as transfers end, and in sharded runs only a part on each rank.
class HookOnSpans : public HookConformance {
 protected:
  void SetUp() override {
    if (hook_->traits().scope == HookScope::kTensor) {
      GTEST_SKIP() << "this hook asks for whole gradients";
    }
  }

  const std::unique_ptr<GradientHook> whole_ = Make();
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
    Must(RunHook(*whole_, expected, seed));
    auto gradients = RandomGradients(seed);
    auto spans = RandomSpans(gradients, random);
    Must(RunHook(*hook_, gradients, seed, spans));
    ExpectNear(gradients, spans, expected);
    if (is_global()) continue;
    for (const GradientSpan& span : spans) {  // element by element: no bit may differ
      ASSERT_EQ(span.scale, expected[span.parameter].scale);
      ASSERT_EQ(gradients[span.parameter].data, expected[span.parameter].data);
    }
  }
}

TEST_P(HookOnSpans, GivesTheResultOfOneRankWhenRanksSumWhatTheyObserved) {
  if (!is_global()) GTEST_SKIP() << "this hook observes nothing";
  std::vector<std::unique_ptr<GradientHook>> ranks;
  for (int r = 0; r < 3; ++r) ranks.push_back(Make());
  std::mt19937 random(13);
  std::set<size_t> number_counts;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " after shares with seed 13");
    auto expected = RandomGradients(seed);
    Must(RunHook(*whole_, expected, seed));
    auto gradients = RandomGradients(seed);
    std::vector<std::vector<GradientSpan>> shares(3);
    for (const GradientSpan& span : RandomSpans(gradients, random)) {
      shares[seed % 7 == 0 ? 1 : random() % 3].push_back(span);  // some ranks may have no part
    }
    size_t number_count = 0;
    Must(RunHookSharded(ranks, gradients, seed, shares, &number_count));
    number_counts.insert(number_count);
    for (const auto& share : shares) ExpectNear(gradients, share, expected);
  }
  EXPECT_EQ(number_counts.size(), 1u) << "the same number of them in every step";
}

INSTANTIATE_TEST_SUITE_P(Plugins, HookOnSpans,
                         testing::ValuesIn(PluginPaths({"clip_value", "clip_norm"})));

}  // namespace
}  // namespace engine::test
