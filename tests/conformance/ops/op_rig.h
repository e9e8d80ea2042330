// Ops of a library against their formulas, on the rig of the conformance kit (tools/conform/ops).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/ops/reference_ops.h"
#include "tests/conformance/plugin_under_test.h"
#include "tools/conform/ops/replica_group.h"

namespace engine::test {

constexpr uint32_t kSeed = 20240229;

// OpSample::Parse of what is right.
OpSample Sample(const std::string& text);

// The samples that every op plugin is judged on.
std::vector<OpSample> FormulaCases();
// Of these, those of functions of elements and of ops on arrays.
std::vector<OpSample> ArrayCases();

struct Settings {
  int threads = 1;                     // of one op, where the plugin has such an option
  DType activation = DType::kFloat32;  // or kBFloat16, where the plugin has the option "precision"
  bool tune = false;                   // measures, where it can
};

const PluginUnderTest& Plugin(const std::string& path);
bool HasOp(const std::string& path, const std::string& op);
LoadedOps Load(const std::string& path, const Settings& settings = {});
// Whether the library can also run in bfloat16.
bool HasBFloat16(const std::string& path);

// An op of a library, and what it is fed: every token and class that there is, and targets that are
// ignored. Nothing may go wrong.
struct Fed {
  Fed(const std::string& path, const OpSample& of, const Settings& settings = {});

  void Feed(int64_t samples);
  RunResult Run(const RunOptions& options = {});

  OpSample sample;
  LoadedOps ops;
  MadeOp op;
  Problem problem;  // of the full batch
  Formula formula;
};

// Samples that an op refuses with kConfig, each with a part of its sentence. Of ops that the library
// does not have nothing is expected.
using BadInputs = std::vector<std::pair<std::string, std::string>>;
void ExpectRefused(const std::string& path, const Settings& settings, const BadInputs& bad);

// `relative` is to the largest wanted value.
void ExpectNear(const std::vector<float>& got, const Values& want, double relative,
                const std::string& what, double absolute = 0);

// What outputs and gradients have to be. Gradients are compared along random directions, each of
// which has a part in every element, with central differences of the formula: in double precision
// these are exact to ten digits.
class Expected {
 public:
  explicit Expected(const Fed& fed, double step = 1e-7);

  void Check(const RunResult& result, uint32_t accumulate = 0) const;

 private:
  struct Slope {
    size_t input;
    Values direction;
    double value;
  };

  // Rounding to float32, and to bfloat16 where results, and what is between two steps of an op, are
  // that: beside the largest value, as they come out of sums of terms as large, and beside the
  // inputs, which are about 1.
  double relative_ = 2e-5, absolute_ = 1e-6;
  Values outputs_;
  std::vector<Slope> slopes_;
};

}  // namespace engine::test
