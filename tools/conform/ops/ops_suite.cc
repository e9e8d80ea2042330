#include "tools/conform/ops/ops_suite.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <utility>

namespace engine::conform {
namespace {

constexpr int64_t kLargestBatch = 13;  // times the batch that was found

// What the tests take for granted.
bool IsUsable(const OpSignature& signature, size_t inputs) {
  constexpr int64_t kMostBytes = int64_t{1} << 28;
  const bool counts = signature.output_count >= 1 && signature.output_count <= kMaxOpOutputs &&
                      signature.parameter_count >= 0 &&
                      signature.parameter_count + static_cast<int32_t>(inputs) <= kMaxOpInputs;
  return counts && signature.saved_bytes >= 0 && signature.saved_bytes < kMostBytes &&
         signature.workspace_bytes >= 0 && signature.workspace_bytes < kMostBytes;
}

bool AllFinite(const RunResult& result) {
  const auto finite = [](const std::vector<float>& values) {
    return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  };
  return std::ranges::all_of(result.outputs, finite) &&
         std::ranges::all_of(result.gradients, finite);
}

// The search for one op.
struct Found {
  SearchResult search;
  std::vector<OpCase> cases;
};

Domain FindDomain(const LoadedOps& ops, const OpSample& sample) {
  for (const Domain domain :
       {Domain{}, Domain{.positive = true}, Domain{.end = 1}, Domain{.positive = true, .end = 1}}) {
    MadeOp op = Must(ops.Make(sample));
    const Problem problem = MakeProblem(sample, domain, op, sample.samples(), 1);
    const RunResult result = RunOp(ops.device(), op, problem);
    if (result.status.ok() && AllFinite(result)) return domain;
  }
  return {};
}

Found Find(const std::string& op) {
  const LoadedOps ops = LoadUnderTest();
  const TryInfer infer = [&](const OpSample& sample) { return ops.Make(sample).status(); };
  Found found;
  for (const std::string& text : UnderTest().inputs) {
    OpSample given = Must(OpSample::Parse(text));
    if (given.op == op) found.search.found.push_back(std::move(given));
  }
  if (found.search.found.empty()) {
    found.search = FindSamples(op, UnderTest().plugin.option_specs(), infer);
  }
  for (const OpSample& sample : found.search.found) {
    const MadeOp made = Must(ops.Make(sample));
    if (!IsUsable(made.signature, sample.inputs.size())) continue;
    found.cases.push_back({sample, FindDomain(ops, sample)});
  }
  const auto batched = std::ranges::find_if(
      found.cases, [](const OpCase& op_case) { return op_case.sample.samples() > 0; });
  if (batched == found.cases.end()) return found;
  OpCase large = *batched;
  large.large = true;
  for (TensorSpec& input : large.sample.inputs) input = WithSamples(input, 1, kLargestBatch);
  if (infer(large.sample).ok()) found.cases.push_back(large);
  return found;
}

const Found& FoundFor(const std::string& op) {
  static std::map<std::string, Found> all;
  const auto known = all.find(op);
  return known != all.end() ? known->second : all.emplace(op, Find(op)).first->second;
}

}  // namespace

std::vector<std::string> OpsUnderTest() {
  return UnderTest().plugin.ops();
}

LoadedOps LoadUnderTest(const RankInfo& ranks) {
  return LoadedOps::Load(UnderTest().plugin, {}, ranks, UnderTest().Other(PluginKind::kOps));
}

const std::vector<OpCase>& Ops::cases() const {
  return FoundFor(GetParam()).cases;
}

const SearchResult& Ops::search() const {
  return FoundFor(GetParam()).search;
}

void Ops::ForEachCase(const std::function<void(const OpCase& op_case, MadeOp& op)>& body) {
  if (cases().empty()) GTEST_SKIP() << "no inputs are known for it";
  for (const OpCase& op_case : cases()) {
    SCOPED_TRACE(op_case.sample.Text());
    MadeOp op = Must(ops_.Make(op_case.sample));
    body(op_case, op);
    if (HasFailure()) return;  // one is enough to read
  }
}

Problem Ops::NewProblem(const OpCase& op_case, const MadeOp& op, int64_t samples, uint32_t seed) {
  return MakeProblem(op_case.sample, op_case.domain, op, samples, seed);
}

RunResult Ops::Run(MadeOp& op, const Problem& problem, const RunOptions& options) const {
  RunResult result = RunOp(ops_.device(), op, problem, options);
  Must(result.status);
  EXPECT_TRUE(AllFinite(result)) << "a result is no number, or was not written";
  return result;
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, DType dtype,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 1e-2;
  for (const float value : want) largest = std::max(largest, std::abs(static_cast<double>(value)));
  const double tolerance = largest * (dtype == DType::kFloat32 ? 1e-3 : 0.03);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance) << what << ", element " << i;
  }
}

void ExpectSameBits(const RunResult& got, const RunResult& want) {
  EXPECT_TRUE(got.outputs == want.outputs) << "outputs differ";
  EXPECT_TRUE(got.gradients == want.gradients) << "gradients differ";
  EXPECT_TRUE(got.parameters == want.parameters) << "parameters differ";
}

}  // namespace engine::conform
