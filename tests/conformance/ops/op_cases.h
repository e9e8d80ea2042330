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
  uint32_t parameters = 0;  // bit i: data input i is a parameter of another op
};

// The case as a run in bfloat16 has it: inputs in float32 become bfloat16. With `keeps_float32`,
// some do not: of "accumulate", both (gradients of parameters), of others, the first (the batch).
OpCase InBFloat16(OpCase op_case, bool keeps_float32);

// Whether in a run in bfloat16 the op also takes float32: the ops that models begin with, and
// "accumulate".
bool TakesFloat32(const OpCase& op_case);

// Sizes are small, and odd where that may hurt; some are just large enough for several threads.
const std::vector<OpCase>& OpCases();

// Those of the ops of convolution nets, a part of OpCases().
void AddImageOps(std::vector<OpCase>* cases);

// "Relux3x7": of an op and the shape of its input.
std::string NameOf(const std::string& op, const Shape& x);

}  // namespace engine::test
