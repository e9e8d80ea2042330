// What the tests of ops share: every op of the library under test on inputs that its Infer has
// accepted.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/ops/op_sample.h"
#include "tools/conform/ops/op_search.h"
#include "tools/conform/subject.h"

namespace engine::conform {

// The library under test. Its device is that of --with, where it brings none.
LoadedOps LoadUnderTest(const RankInfo& ranks = {});

// An op on inputs that it has accepted.
struct Trial {
  const OpSample& sample;
  const Domain& domain;
  MadeOp op;
  Problem problem = With(sample.samples());  // of the full batch

  Problem With(int64_t samples, uint32_t seed = UnderTest().seed) const {
    return MakeProblem(sample, domain, op, samples, seed);
  }
};

std::vector<std::string> OpsUnderTest();

// Why the library is not judged as a device, and as an accelerator; "" if it is.
std::string BringsNoDevice();
std::string IsNoAccelerator();

// One test per op; its parameter is the name.
class Ops : public testing::TestWithParam<std::string> {
 protected:
  // What was found for the op, by a search that is done once per process.
  const SearchResult& search() const;

  // Calls `body` on each sample that can be judged, of which there must be one.
  void ForEachCase(const std::function<void(Trial& trial)>& body);

  // An error, or a result that is no number, fails the test.
  RunResult Run(MadeOp& op, const Problem& problem, const RunOptions& options = {}) const;
  RunResult Run(Trial& trial, const RunOptions& options = {}) const {
    return Run(trial.op, trial.problem, options);
  }

  // Within rounding of what is summed up in this type: relative to the largest.
  static void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, DType dtype,
                         const std::string& what);
  // Outputs and gradients.
  static void ExpectSame(const RunResult& got, const RunResult& want, const Trial& trial);
  static void ExpectSameBits(const RunResult& got, const RunResult& want);

  const LoadedOps ops_ = LoadUnderTest();
};

}  // namespace engine::conform
