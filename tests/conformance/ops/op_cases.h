// The cases that every op plugin is judged on.
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/ops/reference_ops.h"
#include "tests/conformance/plugin_under_test.h"

namespace engine::test {

struct OpCase {
  std::string name;  // of the test
  std::string op;
  OptionValues::Overrides attributes;
  std::vector<TensorSpec> inputs;
  ReferenceOp reference;
  int64_t classes = 0;  // int32 inputs hold numbers in [smallest, classes)
  int64_t smallest = 0;
  bool always_in_place = false;  // the op is only ever called with its output in input 0
  // What a sample becomes depends on the other samples of the same call, so that a batch that is
  // cut gives other numbers.
  bool mixes_samples = false;
};

// Sizes are small, and odd where that may hurt; some are just large enough for several threads.
const std::vector<OpCase>& OpCases();

// Those of the ops of convolution nets, a part of OpCases().
void AddImageOps(std::vector<OpCase>* cases);
// Those of batch_norm and dropout, a part of OpCases().
void AddTrainingOps(std::vector<OpCase>* cases);

}  // namespace engine::test
