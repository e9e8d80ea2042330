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
};

// Sizes are small, and odd where that may hurt; some are just large enough for several threads.
const std::vector<OpCase>& OpCases();

// Those of the ops of convolution nets, a part of OpCases().
void AddImageOps(std::vector<OpCase>* cases);

}  // namespace engine::test
