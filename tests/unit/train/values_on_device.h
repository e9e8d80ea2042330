// Values of a model, whatever device they lie on; and which ops a test of models runs on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/exec/executor.h"

namespace engine::test {

// The op plugin: that of the environment variable ENGINE_TEST_OPS (a name, or the path of a
// library) if there is one, so that models can be judged on a GPU by the same numbers.
inline std::string OpsUnderTest() {
  const char* chosen = std::getenv("ENGINE_TEST_OPS");
  return chosen == nullptr ? "cpu_ops" : chosen;
}

// Options of that plugin, in the words of a configuration: ENGINE_TEST_OPS_OPTIONS.
inline std::string OpsOptionsUnderTest() {
  const char* options = std::getenv("ENGINE_TEST_OPS_OPTIONS");
  return options == nullptr ? "" : options;
}

// A file of tests/golden; the folder is another one where the tests were built elsewhere.
inline std::string GoldenFile(const std::string& name) {
  const char* folder = std::getenv("ENGINE_TEST_GOLDEN");
  return std::string(folder == nullptr ? ENGINE_TEST_SOURCE_DIR "/tests/golden" : folder)
      .append("/")
      .append(name);
}

inline std::vector<float> Floats(const exec::ModelMemory& memory, const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.count()));
  const Status status = memory.ReadFloats(view, values.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

// Of the output of this name, after a forward pass.
inline std::vector<float> OutputOf(const exec::ModelMemory& memory, const std::string& name) {
  const auto& outputs = memory.graph().outputs;
  const auto found = std::ranges::find(outputs, name, &graph::GraphOutput::name);
  EXPECT_NE(found, outputs.end()) << name;
  if (found == outputs.end()) return {};
  return Floats(memory, memory.calls().ViewOfValue(found->value));
}

// Expects `values` times `scale` to be near `expected`, but for the elements from `skip_begin` to
// `skip_end`; `tolerance` is relative to the largest expected element.
inline void ExpectNear(const std::vector<float>& values, const TensorView& expected, double scale,
                       double tolerance, const std::string& what, int64_t skip_begin = 0,
                       int64_t skip_end = 0) {
  ASSERT_EQ(static_cast<int64_t>(values.size()), expected.count()) << what;
  double largest = 0, worst = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < expected.count(); ++i) {
    const double wanted = expected.f32()[i];
    largest = std::max(largest, std::abs(wanted));
    if (i >= skip_begin && i < skip_end) continue;
    const double error = std::abs(values[static_cast<size_t>(i)] * scale - wanted);
    ASSERT_FALSE(std::isnan(error)) << what << " at " << i;
    if (error <= worst) continue;
    worst = error;
    at = i;
  }
  ASSERT_GT(largest, 0) << what;
  EXPECT_LE(worst / largest, tolerance) << what << " at " << at;
}

inline std::vector<float> GradientOf(const exec::ModelMemory& memory, int32_t parameter) {
  return Floats(memory, {.data = memory.gradients() + memory.layout().offset[parameter],
                         .shape = memory.graph().parameters[parameter].shape});
}

inline exec::StepStatistics StatisticsIn(const exec::ModelMemory& memory) {
  const auto read = memory.ReadStatistics();
  EXPECT_TRUE(read.ok()) << read.status().message();
  return read.ok() ? *read : exec::StepStatistics{};
}

inline Status SetParameter(exec::ModelMemory& memory, int32_t parameter, const TensorView& values) {
  ENGINE_RETURN_IF_ERROR(memory.device().Copy(memory.parameter(parameter).data, values.data,
                                              values.size_bytes(), memory.stream()));
  ENGINE_RETURN_IF_ERROR(memory.RefreshCopies());
  return memory.stream()->Synchronize(60'000);
}

// One step and its update; its own statistics.
inline Result<exec::StepStatistics> StepAndFlush(exec::Executor& executor,
                                                 const exec::StepInput& input) {
  ENGINE_ASSIGN_OR_RETURN(exec::StepResult result, executor.Step(input));
  ENGINE_RETURN_IF_ERROR(executor.Flush());
  if (result.step != input.step) {
    ENGINE_ASSIGN_OR_RETURN(result, executor.Remaining());
  }
  EXPECT_EQ(result.step, input.step);
  return result.statistics;
}

}  // namespace engine::test
