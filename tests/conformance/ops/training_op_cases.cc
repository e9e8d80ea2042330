// Cases of batch_norm and dropout.
#include <cstdlib>

#include "tests/conformance/ops/op_cases.h"
#include "tests/conformance/ops/reference_training_ops.h"

namespace engine::test {
namespace {

std::string Name(const std::string& op, const Shape& x) {
  std::string name = op;
  for (int32_t i = 0; i < x.ndim; ++i) name.append("x").append(std::to_string(x[i]));
  return name;
}

// With few values per channel, epsilon is large: else what is measured is rounding over a deviation
// that may be as small.
void AddBatchNorm(const Shape& x, const char* epsilon, std::vector<OpCase>* cases) {
  for (const bool sync : {true, false}) {
    cases->push_back({.name = Name(sync ? "BatchNorm" : "BatchNormAlone", x),
                      .op = "batch_norm",
                      .attributes = {{"epsilon", epsilon}, {"sync", sync ? "true" : "false"}},
                      .inputs = {{x, DType::kFloat32, 1}},
                      .reference = ReferenceBatchNorm(std::strtod(epsilon, nullptr)),
                      .mixes_samples = !sync});
  }
}

void AddDropout(const Shape& x, const char* rate, uint32_t batched, std::vector<OpCase>* cases) {
  RandomKey key;
  if (batched == 0) key.first_sample = 0;  // all ranks have the same
  std::string name = Name("Dropout", x);
  name.append("At").append(std::to_string(static_cast<int>(std::strtod(rate, nullptr) * 1000)));
  if (batched == 0) name.append("Unbatched");
  cases->push_back({.name = name,
                    .op = "dropout",
                    .attributes = {{"rate", rate}},
                    .inputs = {{x, DType::kFloat32, batched}},
                    .reference = ReferenceDropout(std::strtod(rate, nullptr), key)});
}

}  // namespace

void AddTrainingOps(std::vector<OpCase>* cases) {
  AddBatchNorm(Shape{7, 1}, "0.1", cases);
  AddBatchNorm(Shape{9, 5}, "0.1", cases);
  AddBatchNorm(Shape{3, 2, 33}, "0.1", cases);
  AddBatchNorm(Shape{5, 3, 4, 20}, "1e-3", cases);
  AddBatchNorm(Shape{4, 7, 5, 16}, "1e-3", cases);
  AddBatchNorm(Shape{16, 9, 11, 35}, "1e-5", cases);  // several threads, several blocks
  AddDropout(Shape{33}, "0.5", 1, cases);
  AddDropout(Shape{5, 7}, "0.1", 1, cases);
  AddDropout(Shape{5, 7}, "0.75", 0, cases);
  AddDropout(Shape{6, 3, 5, 4}, "0", 1, cases);
  AddDropout(Shape{4, 3, 3}, "0.999", 1, cases);
  AddDropout(Shape{160, 257}, "0.2", 1, cases);
}

}  // namespace engine::test
