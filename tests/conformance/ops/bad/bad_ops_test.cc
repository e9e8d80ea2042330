// The conformance kit finds each fault of bad_ops and bad_device, by the test that is there for it and
// by no other.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/support/probe_process.h"

namespace engine::test {
namespace {

nlohmann::json Conform(const std::string& plugin, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {ENGINE_TEST_BINARY "-conform", ENGINE_TEST_BAD_PLUGINS + plugin + ".so"});
  arguments.insert(arguments.end(), {"--json", "-"});
  ProbeProcess process(arguments);
  process.Wait();
  return nlohmann::json::parse(process.output(), nullptr, false);
}

// Messages by test.
std::map<std::string, std::string> Failed(const std::string& plugin,
                                          const std::vector<std::string>& arguments) {
  std::map<std::string, std::string> failed;
  const auto judged = Conform(plugin, arguments);
  for (const auto& test : judged["tests"]) {
    if (test["outcome"] == "failed") failed[test["test"]] = test["message"];
  }
  return failed;
}

TEST(BadOps, EachFaultIsFoundByItsTest) {
  const std::map<std::string, std::string> reasons = {
      {"GradientsAreTheDerivatives/gradient", "against finite differences"},
      {"StaysInItsMemory/overrun", "Forward wrote beside output 0"},
      {"LeavesAloneWhatIsNotItsOwn/writes_input", "Backward changed input 0"},
      {"AddsToGradients/ignores_accumulate", "gradient of input 0"},
      {"TakesNoSamples/no_samples", "was not written"},
      {"KeepsInstancesApart/shared_state", "gradient of input 1"},
      {"RepeatsItself/drifts", "outputs differ"},
      {"BackwardReadsWhatItSays/reads_undeclared", "is no number"},
      {"WritesAllAndReadsNothingUnwritten/reads_unwritten", "gradient of input 0"},
      {"RandomNumbersAreThoseOfTheBatch/random_by_rank", "output 0"},
      {"SamplesDoNotMix/mixes_samples", "output 0"},
      {"TakesUnwantedGradients/ignores_unwanted", "SIGSEGV"},
      {"AcceptsInputs/refuses_silently", "gave no kConfig with a sentence"},
      {"AllocatesNoMemoryForData/allocates", "allocated"},
      {"AcceptsInputs/picky", "(it needs float32 (B, ..., 11)); name some: --inputs"},
      {"SharesMemoryWhereItSaysSo/in_place", "gradient of input 1"},
      {"SharesMemoryWhereItSaysSo/passes_gradient", "gradient of input 1"},
      {"LeavesAloneWhatIsNotItsOwn/passes_gradient", "Backward changed the gradient of output 0"},
      {"SharesMemoryWhereItSaysSo/gradient_in_place", "gradient of input 1"},
      {"TakesMissingGradients/missing_gradient", "gradient of input 0"},
      {"ChangesBuffersInTrainingAlone/constant_buffer", "buffer"},
      {"ReplicasMakeOneBatch/own_statistics", "output 0"},
      {"ReplicasMakeOneBatch/odd_gather", "ranks gather different counts"},
      {"EvaluatesAlone/evaluates_together", "output 0"},
      {"LossesAddUp/mean_loss", "output 0"},
      {"SaysWhatItDoes/says_five_outputs", "output_count"},
      {"SaysWhatItDoes/says_input_9", "names inputs that there are not"},
      {"SaysWhatItDoes/says_it_adds", "names an input that is not differentiable"},
      {"SaysWhatItDoes/says_in_place_of_9", "in_place_of"},
      {"SaysWhatItDoes/says_no_name", "a name twice, or none"},
      {"SaysWhatItDoes/says_not_trained", "trained, and no gradient, or the reverse"},
      {"SaysWhatItDoes/says_batch", "no multiple of the samples"},
      {"SaysWhatItDoes/says_loss", "is not float32[3]"}};
  auto failed = Failed("bad_ops", {"--suite", "ops"});
  for (const auto& [test, reason] : reasons) {
    EXPECT_THAT(failed[test], HasSubstr(reason)) << test;
    failed.erase(test);
  }
  // What an op is wrong about breaks other tests too.
  std::erase_if(failed,
                [](const auto& one) { return one.first.find("/says_") != std::string::npos; });
  EXPECT_THAT(failed, ::testing::IsEmpty());
}

TEST(BadOps, WhatTheSearchDoesNotFindCanBeNamed) {
  const auto judged =
      Conform("bad_ops", {"--suite", "ops.*/picky", "--inputs", "picky=float32[4*,11]"});
  EXPECT_EQ(judged["must"]["failed"], 0);
  EXPECT_GT(judged["must"]["ran"], 10);
}

TEST(BadDevice, EachFaultIsFoundByItsTest) {
  const std::map<std::string, std::string> tests = {{"", ""},
                                                    {"type", "IsThatOfTheDescriptor"},
                                                    {"alignment", "GivesAlignedMemory"},
                                                    {"message", "SaysHowMuchMemoryIsMissing"},
                                                    {"zero", "WorksInTheOrderOfTheStream"},
                                                    {"event", "OrdersStreamsByEvents"},
                                                    {"host_memory", "LendsHostMemory"},
                                                    {"recording", "RecordsAndReplays"},
                                                    {"quotient", "FillsQuotients"},
                                                    {"rounding", "Converts"},
                                                    {"any_type", "Converts"},
                                                    {"kernel", "KnowsItsKernels"}};
  for (const auto& [fault, test] : tests) {
    const auto failed = Failed(
        "bad_device", {"--suite", "device", "--suite", "accelerator", "--set", "fault=" + fault});
    std::string names;
    for (const auto& [name, message] : failed) names += name;
    EXPECT_EQ(names, test) << fault;
  }
  EXPECT_THAT(Failed("bad_device", {"--suite", "ops.CanAccumulate"}),
              ::testing::Contains(::testing::Key("CanAccumulate")));
}

}  // namespace
}  // namespace engine::test
