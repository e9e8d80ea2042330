#include "app/run/step_line.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace engine::run {
namespace {

using std::chrono::milliseconds;

// Steps of 32 samples whose loss is their number, each `ms` after the one before.
StepLine After(int64_t steps, int ms) {
  StepLine line;
  StepLine::Clock::time_point now{};
  for (int64_t step = 1; step <= steps; ++step) {
    now += milliseconds(step == 1 ? 60000 : ms);  // plugins set themselves up
    line.Add({.step = step,
              .steps = 1000,
              .epoch = 0.25,
              .loss = static_cast<double>(step),
              .learning_rate = 0.002,
              .samples = 32,
              .seconds = ms / 1000.0,
              .communication_seconds = ms / 4000.0},
             now);
  }
  return line;
}

TEST(StepLine, TheLossIsThatOfTheStepBesideAStatedMean) {
  EXPECT_EQ(After(100, 500).Text(),
            "step  100/1000  loss 100.0000  mean20 90.5000  64 samples/s  comm 25 %  lr 2.00e-03  "
            "epoch 0.25  ETA 7:30");
  EXPECT_THAT(After(3, 500).Text(), HasSubstr("loss 3.0000  mean20 2.0000")) << "of three steps";
}

TEST(StepLine, TheFirstStepSaysNothingOfSpeed) {
  EXPECT_EQ(After(1, 500).Text(),
            "step    1/1000  loss 1.0000  mean20 1.0000  lr 2.00e-03  epoch 0.25");
  EXPECT_THAT(After(2, 500).Text(), EndsWith("ETA 8:19")) << "not the minute of the first step";
}

TEST(StepLine, OneSlowStepMovesTheTimeThatIsLeftALittle) {
  StepLine line;
  StepLine::Clock::time_point now{};
  for (int64_t step = 1; step <= 300; ++step) {
    now += milliseconds(step == 300 ? 1000 : 100);
    line.Add({.step = step, .steps = 1300, .samples = 1}, now);
  }
  EXPECT_THAT(line.Text(), HasSubstr("ETA 1:47")) << "of 100 s, and not of 1000 s";
}

TEST(StepLine, WhatDoesNotFitGoesTheLeastImportantFirst) {
  const StepLine line = After(100, 500);
  size_t before = 1000;
  for (size_t width = 110; width > 0; --width) {
    const std::string text = line.Text(width);
    EXPECT_LE(text.size(), width);
    EXPECT_LE(text.size(), before) << "at " << width;
    before = text.size();
  }
  EXPECT_THAT(line.Text(82), HasSubstr("  64 samples/s  lr 2.00e-03  ETA 7:30"));
  EXPECT_THAT(line.Text(82), Not(HasSubstr("epoch")));
  EXPECT_EQ(line.Text(39), "step  100/1000  loss 100.0000  ETA 7:30");
  EXPECT_EQ(line.Text(30), "step  100/1000  loss 100.0000");
  EXPECT_THAT("step  100/1000", StartsWith(line.Text(8)));
}

}  // namespace
}  // namespace engine::run
