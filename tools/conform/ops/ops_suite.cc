#include "tools/conform/ops/ops_suite.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace engine::conform {
namespace {

constexpr int64_t kLargestBatch = 13;  // times the batch that was found

// What the tests take for granted.
bool IsUsable(const OpSignature& says, size_t inputs) {
  constexpr int64_t kMostBytes = int64_t{1} << 28;
  const auto is_size = [](int64_t bytes) { return bytes >= 0 && bytes < kMostBytes; };
  return says.output_count >= 1 && says.output_count <= kMaxOpOutputs &&
         says.parameter_count >= 0 &&
         says.parameter_count + static_cast<int32_t>(inputs) <= kMaxOpInputs &&
         std::max(says.output_is_view_of, says.in_place_of) < static_cast<int32_t>(inputs) &&
         (says.is_loss == 0 || says.outputs[0].shape == Shape{3}) && is_size(says.saved_bytes) &&
         is_size(says.workspace_bytes);
}

bool AllFinite(const RunResult& result) {
  const auto finite = [](const std::vector<float>& values) {
    return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  };
  return std::ranges::all_of(result.outputs, finite) &&
         std::ranges::all_of(result.gradients, finite);
}

// The search for one op, and those of its samples that can be judged.
struct Found {
  SearchResult search;
  std::vector<std::pair<OpSample, Domain>> cases;
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
  const auto specs = UnderTest().plugin.option_specs();
  // Kept from one sample to the next: a search changes inputs more often than attributes.
  std::map<OptionValues::Overrides, OptionValues> values;
  const TryInfer infer = [&](const OpSample& sample) {
    const auto made = values.try_emplace(sample.attributes, specs, op, sample.attributes).first;
    return ops.Make(sample, made->second).status();
  };
  Found found;
  for (const std::string& text : UnderTest().inputs) {
    OpSample given = Must(OpSample::Parse(text));
    if (given.op == op) found.search.found.push_back(std::move(given));
  }
  if (found.search.found.empty()) found.search = FindSamples(op, specs, infer);
  for (const OpSample& sample : found.search.found) {
    const MadeOp made = Must(ops.Make(sample));
    if (IsUsable(made.signature, sample.inputs.size())) {
      found.cases.emplace_back(sample, FindDomain(ops, sample));
    }
  }
  const auto batched =
      std::ranges::find_if(found.cases, [](const auto& one) { return one.first.samples() > 0; });
  if (batched == found.cases.end()) return found;
  auto large = *batched;  // several threads may share it
  for (TensorSpec& input : large.first.inputs) input = WithSamples(input, 1, kLargestBatch);
  if (infer(large.first).ok()) found.cases.push_back(large);
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

const SearchResult& Ops::search() const {
  return FoundFor(GetParam()).search;
}

void Ops::ForEachCase(const std::function<void(Trial& trial)>& body) {
  const auto& cases = FoundFor(GetParam()).cases;
  if (cases.empty()) GTEST_SKIP() << "no inputs are known for it";
  for (const auto& [sample, domain] : cases) {
    SCOPED_TRACE(sample.Text());
    Trial trial{sample, domain, Must(ops_.Make(sample))};
    body(trial);
    if (HasFailure()) return;  // one is enough to read
  }
}

RunResult Ops::Run(MadeOp& op, const Problem& problem, const RunOptions& options) const {
  RunResult result = RunOp(ops_.device(), op, problem, options);
  Must(result.status);
  EXPECT_TRUE(AllFinite(result)) << "a result is no number, or was not written";
  return result;
}

void Ops::ExpectSame(const RunResult& got, const RunResult& want, const Trial& trial) {
  ASSERT_TRUE(got.status.ok()) << got.status.message();
  for (size_t i = 0; i < want.outputs.size(); ++i) {
    ExpectNear(got.outputs[i], want.outputs[i], trial.op.signature.outputs[i].dtype,
               "output " + std::to_string(i));
  }
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    const bool is_data = i < trial.op.data_inputs;
    ExpectNear(got.gradients[i], want.gradients[i],
               is_data ? trial.sample.inputs[i].dtype : DType::kFloat32,
               "gradient of input " + std::to_string(i));
  }
}

void Ops::ExpectSameBits(const RunResult& got, const RunResult& want) {
  EXPECT_TRUE(got.outputs == want.outputs) << "outputs differ";
  EXPECT_TRUE(got.gradients == want.gradients) << "gradients differ";
  EXPECT_TRUE(got.parameters == want.parameters) << "parameters differ";
}

void Ops::ExpectNear(const std::vector<float>& got, const std::vector<float>& want, DType dtype,
                     const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 1e-2;
  for (const float value : want) largest = std::max(largest, std::abs(static_cast<double>(value)));
  const double tolerance = largest * (dtype == DType::kFloat32 ? 1e-3 : 0.03);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance) << what << ", element " << i;
  }
}

}  // namespace engine::conform
