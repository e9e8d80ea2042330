#include "app/checkpoint/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "app/run/run_length.h"
#include "tests/support/expect_status.h"
#include "tests/support/memory_store.h"

namespace engine::test {
namespace {

checkpoint::CheckpointInfo ThisRun(int64_t global_batch) {
  return {.seed = 3, .world_size = 2, .global_batch = global_batch};
}

// After `step` steps over 50 samples.
checkpoint::CheckpointInfo Stored(int64_t step, int64_t global_batch) {
  checkpoint::CheckpointInfo info = ThisRun(global_batch);
  info.step = step;
  info.position = checkpoint::PositionOf(step, 50, global_batch);
  return info;
}

// An epoch has 7 steps, the last one of 2 samples.
constexpr run::TrainingAmount kSevenSteps = {
    .samples = 50, .targets_per_sample = 3, .global_batch = 8};

train::RunStart At(int64_t step) {
  return {.step = step, .first_batch = step};
}

TEST(PlanResume, TheSameRunGoesOnAtTheNextBatchOnAnyNumberOfRanks) {
  for (const int32_t world_size : {1, 2, 5}) {
    checkpoint::CheckpointInfo run = ThisRun(8);
    run.world_size = world_size;
    const auto point = ValueOf(checkpoint::PlanResume(Stored(17, 8), run, 50));
    EXPECT_EQ(point.step, 17);
    EXPECT_EQ(point.first_batch, 17);
    EXPECT_THAT(checkpoint::ResumeWarnings(Stored(17, 8), run), IsEmpty());
    const checkpoint::SamplePosition position = checkpoint::PositionOf(point.BatchAfter(20), 50, 8);
    EXPECT_EQ(position.epoch, 2);  // of 7 steps
    EXPECT_EQ(position.samples, 6 * 8);
  }
}

TEST(PlanResume, AnotherBatchGoesOnAtTheSamePlaceInTheData) {
  // 17 steps of 8 over 50 samples: two epochs of 7 steps and 24 samples; with 16, an epoch has 4.
  const auto point = ValueOf(checkpoint::PlanResume(Stored(17, 8), ThisRun(16), 50));
  EXPECT_EQ(point.step, 17);
  EXPECT_EQ(point.first_batch, 2 * 4 + 1);
  EXPECT_THAT(checkpoint::ResumeWarnings(Stored(17, 8), ThisRun(16)),
              ElementsAre(AllOf(HasSubstr("a global batch of 8"), HasSubstr("this run has 16"))));
  // A checkpoint of that run, and back to 8.
  checkpoint::CheckpointInfo second = ThisRun(16);
  second.step = 19;
  second.position = checkpoint::PositionOf(point.BatchAfter(19), 50, 16);
  EXPECT_EQ(second.position.epoch, 2);
  EXPECT_EQ(second.position.samples, 48);
  const auto third = ValueOf(checkpoint::PlanResume(second, ThisRun(8), 50));
  EXPECT_EQ(third.step, 19);
  EXPECT_EQ(third.first_batch, 2 * 7 + 6);
}

TEST(PlanResume, SaysWhatElseDiffers) {
  checkpoint::CheckpointInfo run = ThisRun(8);
  run.seed = 4;
  run.data = "another";
  EXPECT_THAT(checkpoint::PlanResume(Stored(17, 8), run, 50), IsOk());
  EXPECT_THAT(checkpoint::ResumeWarnings(Stored(17, 8), run),
              ElementsAre(AllOf(HasSubstr("seed 3"), HasSubstr("has 4")),
                          HasSubstr("training data is not that")));
}

TEST(PlanResume, RefusesAnotherOptimizerAndAPlaceWhereNoRunCanBe) {
  checkpoint::CheckpointInfo stored = Stored(17, 8), run = ThisRun(8);
  stored.optimizer = "sgd";
  run.optimizer = "adamw";
  EXPECT_THAT(checkpoint::PlanResume(stored, run, 50),
              FailsWith(StatusCode::kConfig,
                        AllOf(HasSubstr("optimizer 'sgd'"), HasSubstr("uses 'adamw'"))));
  run.optimizer = "sgd";
  stored.global_batch = 0;
  EXPECT_THAT(checkpoint::PlanResume(stored, run, 50),
              FailsWith(StatusCode::kBadData, HasSubstr("but not continued")));
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const auto& [step, epoch, samples] :
       {std::array<int64_t, 3>{most, 0, 0}, {17, most, 0}, {17, most / 7, 0}, {17, 2, 50}}) {
    stored = Stored(step, 8);
    stored.position = {.epoch = epoch, .samples = samples};
    EXPECT_THAT(checkpoint::PlanResume(stored, ThisRun(8), 50), FailsWith(StatusCode::kBadData))
        << step << " " << epoch << " " << samples;
  }
}

TEST(LastStep, CountsFromTheBeginningOfTheRun) {
  EXPECT_EQ(*run::LastStep({.steps = 20}, kSevenSteps, {}), 20);
  EXPECT_EQ(*run::LastStep({.epochs = 2.5}, kSevenSteps, {}), 18);
  EXPECT_EQ(*run::LastStep({.steps = 20}, kSevenSteps, At(19)), 20);
  EXPECT_EQ(*run::LastStep({.epochs = 2.5}, kSevenSteps, At(17)), 18);
  // 17 steps went half as far; 9 of 12 batches of 3 epochs are seen.
  const run::TrainingAmount four_steps = {
      .samples = 50, .targets_per_sample = 3, .global_batch = 16};
  EXPECT_EQ(*run::LastStep({.epochs = 3}, four_steps, {.step = 17, .first_batch = 9}), 20);
}

// Targets that a run of `steps` steps has seen, by going through its batches.
int64_t TargetsSeen(const run::TrainingAmount& amount, int64_t steps) {
  int64_t samples = 0, of_epoch = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t batch = std::min(amount.global_batch, amount.samples - of_epoch);
    samples += batch;
    of_epoch = (of_epoch + batch) % amount.samples;
  }
  return samples * amount.targets_per_sample;
}

TEST(LastStep, IsTheFirstThatHasSeenTheTokens) {
  for (const run::TrainingAmount& amount :
       {kSevenSteps, run::TrainingAmount{.samples = 9, .targets_per_sample = 4, .global_batch = 3},
        run::TrainingAmount{.samples = 5, .targets_per_sample = 1, .global_batch = 64}}) {
    for (int64_t tokens = 1; tokens < 700; ++tokens) {
      const int64_t last = *run::LastStep({.tokens = tokens}, amount, {});
      ASSERT_GE(TargetsSeen(amount, last), tokens);
      ASSERT_LT(TargetsSeen(amount, last - 1), tokens);
      if (last > 2) {
        ASSERT_EQ(*run::LastStep({.tokens = tokens}, amount, At(2)), last);
      }
    }
  }
}

TEST(LastStep, ARunThatIsDoneSaysWhatToRaise) {
  // 17 steps are two epochs of 50 samples and 24 more, with 3 targets each.
  for (const train::RunLength& length : {train::RunLength{.steps = 17},
                                         {.steps = 5},
                                         {.epochs = 2.4},
                                         {.epochs = 1},
                                         {.tokens = 3 * 124},
                                         {.tokens = 1}}) {
    const char* const goal = length.epochs   ? "train.epochs is"
                             : length.tokens ? "train.tokens is"
                                             : "train.steps is";
    EXPECT_THAT(run::LastStep(length, kSevenSteps, At(17)),
                FailsWith(StatusCode::kConfig, AllOf(HasSubstr("it has 17 steps"), HasSubstr(goal),
                                                     HasSubstr("raise it"))));
  }
  EXPECT_EQ(*run::LastStep({.tokens = 3 * 124 + 1}, kSevenSteps, At(17)), 18);
}

TEST(RunStart, IsPublishedForRanksThatComeLater) {
  base::AbortSignal abort;
  test::MemoryStore store(std::make_shared<test::MemoryTable>(), abort);
  EXPECT_THAT(run::PublishedRunStart(store, 1), FailsWith(StatusCode::kTimeout));
  ASSERT_THAT(run::PublishRunStart(store, {.step = 17, .first_batch = 9}), IsOk());
  const auto point = ValueOf(run::PublishedRunStart(store, 1000));
  EXPECT_EQ(point.step, 17);
  EXPECT_EQ(point.first_batch, 9);
}

}  // namespace
}  // namespace engine::test
