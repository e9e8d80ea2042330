// What every optimizer must hold to.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/optimizer/optimizer_rig.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/optimizer.h";

constexpr size_t kElements = 1003;  // prime to every vector width
constexpr uint32_t kUpdates = 5;

class Optimizers : public testing::Test {
 protected:
  bool takes_spans() const { return optimizer_->traits().gate == UpdateGate::kSpan; }

  const std::unique_ptr<Optimizer> optimizer_ = Make<Optimizer>();
};

// Where a tensor of kElements elements is cut: at odd offsets, so that vector bodies and scalar tails
// fall on other elements each time.
std::vector<size_t> RandomCuts(std::mt19937& random) {
  std::vector<size_t> cuts = {0};
  while (cuts.back() < kElements) {
    cuts.push_back(std::min<size_t>(kElements, cuts.back() + 1 + random() % 70));
  }
  return cuts;
}

// Every span of `cuts`, on two threads.
template <typename Update>
void UpdateCuts(const std::vector<size_t>& cuts, Update update) {
  std::vector<Status> statuses(cuts.size());
  const auto every_second = [&](size_t first) {
    for (size_t i = first; i + 1 < cuts.size(); i += 2) statuses[i] = update(cuts[i], cuts[i + 1]);
  };
  {
    const std::jthread other(every_second, 1);
    every_second(0);
  }
  for (const Status& status : statuses) Must(status);
}

void ExpectEqual(const OptimizerRig& one, const OptimizerRig& other, uint32_t step) {
  ASSERT_EQ(one.value(), other.value()) << "in step " << step;
  ASSERT_EQ(one.states(), other.states()) << "in step " << step;
}

TEST_F(Optimizers, DescribesItsStates) {
  MUST(
      "0 to kMaxOptimizerStates states; of their names no two are equal and none is empty; their "
      "format version is at least 1.");
  const OptimizerTraits traits = optimizer_->traits();
  ASSERT_GE(traits.state_count, 0);
  ASSERT_LE(traits.state_count, kMaxOptimizerStates);
  EXPECT_GE(traits.state_format_version, 1u);
  std::set<std::string_view> names;
  for (int32_t i = 0; i < traits.state_count; ++i) names.insert(traits.state_names[i].view());
  EXPECT_EQ(names.size(), static_cast<size_t>(traits.state_count)) << "two states of one name";
  EXPECT_EQ(names.count(""), 0u) << "a state without a name";
}

TEST_F(Optimizers, MovesAgainstTheGradient) {
  SHOULD("The first update should move a value against its gradient.");
  OptimizerRig rig(*optimizer_, {1, 1, -1, -1});
  Must(rig.Update({2, -2, 2, -2}, 1));
  EXPECT_LT(rig.value()[0], 1);
  EXPECT_GT(rig.value()[1], 1);
  EXPECT_LT(rig.value()[2], -1);
  EXPECT_GT(rig.value()[3], -1);
}

TEST_F(Optimizers, GivesTheSameBitsHoweverATensorIsCut) {
  MUST(
      "kSpan: any slice of a parameter can be updated alone, with the same bits; calls for "
      "disjoint spans may run at the same time.");
  if (!takes_spans()) GTEST_SKIP() << "this optimizer does not offer to update spans";
  for (const uint32_t seed : Seeds(20)) {
    std::mt19937 random(seed);
    OptimizerRig whole(*optimizer_, RandomFloats(kElements, seed));
    OptimizerRig cut = whole;
    for (uint32_t step = 1; step <= kUpdates; ++step) {
      const std::vector<float> gradient = RandomFloats(kElements, 1000 * seed + step);
      const UpdateFactors factors{.gradient_scale = 0.3f};
      Must(whole.Update(gradient, step, factors));
      const std::vector<size_t> cuts = RandomCuts(random);
      UpdateCuts(cuts, [&](size_t begin, size_t end) {
        return cut.Update(gradient, step, factors, begin, end);
      });
      ExpectEqual(whole, cut, step);
    }
  }
}

TEST_F(Optimizers, UpdatesManySpansAsOneAfterTheOther) {
  MUST("Updates many of them, the same as one Update after the other.");
  auto* const spans = Query<SpanUpdates>(*optimizer_);
  if (spans == nullptr || !takes_spans()) GTEST_SKIP() << "it takes one span at a time";
  for (const uint32_t seed : Seeds(5)) {
    std::mt19937 random(seed);
    OptimizerRig one(*optimizer_, RandomFloats(kElements, seed));
    OptimizerRig many = one;
    for (uint32_t step = 1; step <= kUpdates; ++step) {
      const std::vector<float> gradient = RandomFloats(kElements, 1000 * seed + step);
      const std::vector<size_t> cuts = RandomCuts(random);
      std::vector<UpdateCall> calls;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        calls.push_back(many.Call(gradient, step, {}, cuts[i], cuts[i + 1]));
      }
      Must(one.Update(gradient, step));
      Must(spans->Update(calls));
      ExpectEqual(one, many, step);
    }
  }
}

TEST_F(Optimizers, RemembersOnlyInItsStates) {
  MUST(
      "What an update leaves is in value and states alone: a run that goes on from a checkpoint "
      "has another object.");
  for (const uint32_t seed : Seeds(5)) {
    OptimizerRig rig(*optimizer_, RandomFloats(kElements, seed));
    for (uint32_t step = 1; step <= kUpdates; ++step) {
      const std::vector<float> gradient = RandomFloats(kElements, 1000 * seed + step);
      const auto fresh = Make<Optimizer>();
      OptimizerRig resumed(*fresh, rig);
      Must(rig.Update(gradient, step));
      Must(resumed.Update(gradient, step));
      ExpectEqual(rig, resumed, step);
    }
  }
}

TEST_F(Optimizers, WritesNothingBesideValueAndStates) {
  MUST("An update writes `count` elements of value and of each state, and nothing else.");
  constexpr size_t kSide = 64;
  constexpr float kMargin = 12345;
  for (const size_t count : {1, 7, 16, 1003}) {
    std::vector<std::vector<float>> arrays(2 + kMaxOptimizerStates);  // gradient, value, states
    for (std::vector<float>& array : arrays) {
      array.assign(count + 2 * kSide, kMargin);
      std::fill_n(array.begin() + kSide, count, &array < &arrays[2] ? 1.0f : 0.0f);
    }
    const std::vector<float> gradient = arrays[0];
    UpdateCall call{.value = arrays[1].data() + kSide,
                    .gradient = arrays[0].data() + kSide,
                    .count = static_cast<int64_t>(count),
                    .learning_rate = 0.01f};
    for (int32_t s = 0; s < optimizer_->traits().state_count; ++s) {
      call.states[s] = arrays[2 + static_cast<size_t>(s)].data() + kSide;
    }
    Must(optimizer_->Update(call));
    EXPECT_EQ(arrays[0], gradient) << "the gradient was written";
    for (const std::vector<float>& array : arrays) {
      EXPECT_EQ(std::count(array.begin(), array.begin() + kSide, kMargin), kSide);
      EXPECT_EQ(std::count(array.end() - kSide, array.end(), kMargin), kSide)
          << "beyond the last of " << count << " elements of array " << &array - &arrays[0];
    }
  }
}

// A power of two scales without rounding, so the bits must agree.
TEST_F(Optimizers, MultipliesTheGradientByItsScale) {
  MUST("The gradient is gradient[i] * gradient_scale.");
  OptimizerRig scaled(*optimizer_, RandomFloats(kElements, 1));
  OptimizerRig plain = scaled;
  for (uint32_t step = 1; step <= kUpdates; ++step) {
    std::vector<float> gradient = RandomFloats(kElements, 100 + step);
    Must(scaled.Update(gradient, step, {.gradient_scale = 0.125f}));
    for (float& g : gradient) g *= 0.125f;
    Must(plain.Update(gradient, step));
  }
  EXPECT_EQ(scaled.value(), plain.value());
}

TEST_F(Optimizers, LeavesAParameterWithoutGradientAndDecayAlone) {
  SHOULD(
      "Where the gradient has always been 0, and weight_decay_scale is 0, no value "
      "should change.");
  OptimizerRig rig(*optimizer_, RandomFloats(kElements, 1));
  const std::vector<float> zero(kElements, 0);
  for (uint32_t step = 1; step <= 3; ++step) {
    Must(rig.Update(zero, step, {.weight_decay_scale = 0}));
  }
  EXPECT_EQ(rig.value(), RandomFloats(kElements, 1));
}

TEST_F(Optimizers, AcceptsAnEmptySpan) {
  MUST("Arrays may be null where count is 0.");
  OptimizerRig rig(*optimizer_, RandomFloats(kElements, 1));
  Must(rig.Update(RandomFloats(kElements, 2), 1, {}, 5, 5));
  EXPECT_EQ(rig.value(), RandomFloats(kElements, 1));
  Must(optimizer_->Update({.step = 1}));
}

}  // namespace
}  // namespace engine::conform
