// The conformance kit finds each fault of bad_ops, by the test that is there for it and by no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/probe_process.h"

namespace engine::test {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

nlohmann::json Conform(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {ENGINE_TEST_BINARY "-conform", ENGINE_TEST_BAD_OPS});
  arguments.insert(arguments.end(), {"--json", "-"});
  ProbeProcess process(arguments);
  process.Wait();
  return nlohmann::json::parse(process.output(), nullptr, false);
}

TEST(BadOps, EachFaultIsFoundByItsTest) {
  std::set<std::string> failed;
  const auto judged = Conform({"--suite", "ops"});
  for (const auto& test : judged["tests"]) {
    if (test["outcome"] == "failed") failed.insert(test["test"]);
  }
  EXPECT_THAT(failed,
              UnorderedElementsAre(
                  "GradientsAreTheDerivatives/gradient", "StaysInItsMemory/overrun",
                  "LeavesAloneWhatIsNotItsOwn/writes_input", "AddsToGradients/ignores_accumulate",
                  "TakesNoSamples/no_samples", "KeepsInstancesApart/shared_state",
                  "RepeatsItself/drifts", "BackwardReadsWhatItSays/reads_undeclared",
                  "RandomNumbersAreThoseOfTheBatch/random_by_rank", "SamplesDoNotMix/mixes_samples",
                  "TakesUnwantedGradients/ignores_unwanted", "AcceptsInputs/refuses_silently",
                  "AllocatesNoMemoryForData/allocates", "AcceptsInputs/picky"));
}

TEST(BadOps, WhatTheSearchDoesNotFindIsNamed) {
  auto judged = Conform({"--suite", "ops.AcceptsInputs/picky"});
  EXPECT_THAT(judged["tests"].at(0)["message"],
              HasSubstr("(it needs float32 (B, ..., 11)); name some: --inputs"));
  judged = Conform({"--suite", "ops.*/picky", "--inputs", "picky=float32[4*,11]"});
  EXPECT_EQ(judged["must"]["failed"], 0);
  EXPECT_GT(judged["must"]["ran"], 10);
}

}  // namespace
}  // namespace engine::test
