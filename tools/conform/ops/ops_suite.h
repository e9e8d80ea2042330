// What the tests of ops share: every op of the library under test on inputs that its Infer has
// accepted.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/ops/op_sample.h"
#include "tools/conform/ops/op_search.h"
#include "tools/conform/subject.h"

namespace engine::conform {

// The library under test. Its device is that of --with, where it brings none.
LoadedOps LoadUnderTest(const RankInfo& ranks = {});

struct OpCase {
  OpSample sample;
  Domain domain;
  bool large = false;  // a batch that several threads may share
};

// Within rounding of what is summed up in this type: relative to the largest.
void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, DType dtype,
                const std::string& what);

std::vector<std::string> OpsUnderTest();

// Why the library is not judged as a device, and as an accelerator; "" if it is.
std::string BringsNoDevice();
std::string IsNoAccelerator();

// One test per op; its parameter is the name.
class Ops : public testing::TestWithParam<std::string> {
 protected:
  // Everything that was found for the op, by a search that is done once per process.
  const std::vector<OpCase>& cases() const;
  const SearchResult& search() const;

  // Calls `body` for each case, of which there must be one, with an op made for it.
  void ForEachCase(const std::function<void(const OpCase& op_case, MadeOp& op)>& body);

  static Problem NewProblem(const OpCase& op_case, const MadeOp& op, int64_t samples,
                            uint32_t seed = UnderTest().seed);
  static Problem NewProblem(const OpCase& op_case, const MadeOp& op) {
    return NewProblem(op_case, op, op_case.sample.samples());
  }

  // An error, or a result that is no number, fails the test.
  RunResult Run(MadeOp& op, const Problem& problem, const RunOptions& options = {}) const;

  const LoadedOps ops_ = LoadUnderTest();
};

void ExpectSameBits(const RunResult& got, const RunResult& want);

}  // namespace engine::conform
