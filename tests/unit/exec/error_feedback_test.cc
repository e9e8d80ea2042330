// topk on ranks that are threads, through executor and checkpoints, against one process that computes
// the same algorithm in double precision: with batches of unequal size, targets that do not count,
// and runs that go on with another batch, loss scale or number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "app/checkpoint/rank_states.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

constexpr int64_t kWidth = 40;
constexpr size_t kKept = 2;  // of each parameter
constexpr float kRate = 0.5;

graph::Graph Product() {
  Net net(FakeOps(), 256, {kWidth});
  return net.Finish(net.Apply("b", "scale", {net.Apply("a", "scale", {Net::kX})}));
}

std::vector<float> StateOf(const exec::Executor& executor) {
  std::vector<float> values;
  for (const int32_t parameter : {0, 1}) {
    const TensorView state = exec::ViewIn(executor.memory(), executor.wire()->state(0), parameter);
    values.insert(values.end(), state.f32(), state.f32() + state.count());
  }
  return values;
}

// What one rank sees in one step.
StepBatch BatchOf(int64_t samples, uint64_t step, int rank) {
  StepBatch batch{.samples = samples, .rate = kRate};
  std::mt19937 random(static_cast<uint32_t>(100 * step) + static_cast<uint32_t>(rank));
  std::normal_distribution<float> normal;
  const uint32_t masked_of_ten = 3 * (static_cast<uint32_t>(step) % 4);
  for (int64_t k = 0; k < samples * kWidth; ++k) {
    batch.input.push_back(normal(random));
    const bool counts = random() % 10 >= masked_of_ten;
    batch.target.push_back(counts ? static_cast<int32_t>(random() % 5) - 3 : kMasked);
  }
  return batch;
}

// A run from one checkpoint to the next; batch sizes come again and again.
struct Phase {
  int ranks = 2;
  float loss_scale = 1;
  std::vector<int64_t> samples;  // of all ranks, by step
  uint64_t steps = 12;

  int64_t Share(uint64_t step, int rank) const {
    const int64_t all = samples[step % samples.size()];
    return all / ranks + (rank < all % ranks ? 1 : 0);
  }
};

// y = b a x, and the loss is the sum of y (target + 1).
class Reference {
 public:
  explicit Reference(int ranks) : residuals_(static_cast<size_t>(ranks)) { values_.fill(1); }

  void Train(const Phase& phase, uint64_t first_step) {
    if (residuals_.size() != static_cast<size_t>(phase.ranks)) {
      Vector sum{};
      for (const Vector& residual : residuals_) {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += residual[i];
      }
      residuals_.assign(static_cast<size_t>(phase.ranks), Vector{});
      residuals_[0] = sum;
    }
    for (uint64_t step = first_step; step < first_step + phase.steps; ++step) Step(phase, step);
  }
  const auto& values() const { return values_; }
  const auto& residuals() const { return residuals_; }

 private:
  using Vector = std::array<double, 2 * kWidth>;  // a, b

  void Step(const Phase& phase, uint64_t step) {
    std::vector<Vector> gradients;
    double targets = 0;
    for (int rank = 0; rank < phase.ranks; ++rank) {
      Vector& gradient = gradients.emplace_back();
      const StepBatch batch = BatchOf(phase.Share(step, rank), step, rank);
      for (size_t k = 0; k < batch.input.size(); ++k) {
        if (batch.target[k] == kMasked) continue;
        const size_t i = k % kWidth;
        const double slope = double{batch.input[k]} * (batch.target[k] + 1);
        gradient[i] += slope * values_[kWidth + i];
        gradient[kWidth + i] += slope * values_[i];
        ++targets;
      }
    }
    for (size_t rank = 0; rank < gradients.size(); ++rank) {
      Vector& kept = residuals_[rank];
      for (size_t i = 0; i < kept.size(); ++i) kept[i] += gradients[rank][i] / targets;
      for (const size_t begin : {size_t{0}, size_t{kWidth}}) {
        std::vector<size_t> order(kWidth);
        std::iota(order.begin(), order.end(), begin);
        std::sort(order.begin(), order.end(),
                  [&](size_t a, size_t b) { return std::abs(kept[a]) > std::abs(kept[b]); });
        for (size_t j = 0; j < kKept; ++j) {
          values_[order[j]] -= kRate * std::exchange(kept[order[j]], 0);
        }
      }
    }
  }

  Vector values_;
  std::vector<Vector> residuals_;
};

class ErrorFeedbackTest : public ::testing::Test {
 protected:
  // Goes on where the run before has ended; gives what each rank has not sent at the end.
  std::vector<RankResult> Run(const Phase& phase, uint64_t first_step,
                              std::vector<std::vector<float>>* residuals) {
    RankWorld world{
        .size = phase.ranks, .steps = phase.steps, .seed = static_cast<uint32_t>(first_step)};
    world.first_step = first_step;
    world.model = Product;
    world.hooks = [] {
      return HookList(CreateFrom<GradientHook>(PluginPath("topk"), {{"ratio", "0.05"}}));
    };
    world.scheduler = [&](int rank) {
      return std::make_unique<LeadScheduler>(first_step + static_cast<uint64_t>(rank));
    };
    world.prepare = [&](Rig& rig) { rig.options.loss_scale = phase.loss_scale; };
    world.batch = [&](int rank, uint64_t step) {
      return BatchOf(phase.Share(step, rank), step, rank);
    };
    world.begin = [&](exec::Executor& executor, int rank) -> Status {
      if (first_step == 1) return {};
      ENGINE_ASSIGN_OR_RETURN(const auto opened, checkpoint::OpenCheckpoint(from_));
      EXPECT_EQ(checkpoint::StateWarnings(opened, executor, phase.ranks).size(),
                opened.info.world_size == phase.ranks ? 0u : 1u);
      return checkpoint::LoadCheckpoint(opened, executor,
                                        {.rank = rank, .world_size = phase.ranks});
    };
    residuals->resize(static_cast<size_t>(phase.ranks));
    world.end = [&](exec::Executor& executor, int rank) -> Status {
      (*residuals)[static_cast<size_t>(rank)] = StateOf(executor);
      ENGINE_ASSIGN_OR_RETURN(const auto kept, checkpoint::CollectRankStates(executor, to_));
      if (rank > 0) return {};
      ENGINE_ASSIGN_OR_RETURN(
          const auto content,
          checkpoint::ContentOf(executor, {.config = "seed: 1", .world_size = phase.ranks}, kept));
      return checkpoint::WriteCheckpoint(to_, content);
    };
    return world.Run();
  }

  void ExpectReference(const std::vector<Phase>& phases) {
    Reference reference(phases[0].ranks);
    uint64_t first_step = 1;
    for (const Phase& phase : phases) {
      SCOPED_TRACE("from step " + std::to_string(first_step));
      from_ = std::exchange(to_, folder_ / std::to_string(first_step));
      std::vector<std::vector<float>> residuals;
      const auto results = Run(phase, first_step, &residuals);
      reference.Train(phase, first_step);
      first_step += phase.steps;
      for (size_t rank = 0; rank < results.size(); ++rank) {
        ASSERT_THAT(results[rank].status, IsOk());
        for (size_t i = 0; i < 2 * kWidth; ++i) {
          ASSERT_NEAR(results[rank].parameters[i], reference.values()[i], 2e-5) << "value " << i;
          ASSERT_NEAR(residuals[rank][i], reference.residuals()[rank][i], 1e-6)
              << "what rank " << rank << " has not sent, " << i;
        }
      }
    }
  }

  const test::TempFolder folder_;
  std::string from_, to_;
};

// In every fourth step all targets count, in the others seven, four or one of ten.
TEST_F(ErrorFeedbackTest, ShortBatchesAndMaskedTargetsWeighAsInTheMean) {
  ExpectReference({{.samples = {512, 512, 7}, .steps = 40}});
  ExpectReference({{.ranks = 3, .loss_scale = 1024, .samples = {7, 512, 64}, .steps = 40}});
}

TEST_F(ErrorFeedbackTest, ARunGoesOnWithAnotherBatchLossScaleAndNumberOfRanks) {
  ExpectReference({{.loss_scale = 1, .samples = {512, 7}},
                   {.loss_scale = 1024, .samples = {512, 7}},
                   {.loss_scale = 0.125f, .samples = {32}},
                   {.ranks = 3, .loss_scale = 8, .samples = {100, 9}}});
}

}  // namespace
}  // namespace engine::test
