#include "tools/conform/ops/op_sample.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <regex>

namespace engine::conform {
namespace {

std::optional<TensorSpec> ParseSpec(const std::string& dtype, const std::string& dims) {
  TensorSpec spec;
  const auto named = std::ranges::find(kAllDTypes, dtype, [](DType type) { return Name(type); });
  if (named == std::end(kAllDTypes)) return std::nullopt;
  spec.dtype = *named;
  static const std::regex extent("([0-9]{1,9})(\\*?)(,|$)");
  for (std::sregex_iterator at(dims.begin(), dims.end(), extent), end; at != end; ++at) {
    if (spec.shape.ndim == kMaxDims) return std::nullopt;
    if ((*at)[2].length() > 0) spec.batched = 1;
    spec.shape.dims[spec.shape.ndim++] = std::stoll((*at)[1]);
  }
  return spec;
}

bool IsFloat(DType dtype) {
  return dtype != DType::kInt32 && dtype != DType::kUint8;
}

Tensor RandomTensor(const TensorSpec& spec, const Domain& domain, std::mt19937& random) {
  Tensor tensor{spec, Values(static_cast<size_t>(spec.shape.Count()))};
  Values& values = tensor.values;
  if (!IsFloat(spec.dtype)) {
    std::uniform_int_distribution<int64_t> integers(domain.smallest, domain.end - 1);
    for (double& value : values) value = static_cast<double>(integers(random));
    return tensor;
  }
  // A bfloat16 holds 8 bits; positive numbers, with one before the point, are halved below.
  const double coarse = domain.positive ? 0x1p-6 : 0x1p-7;
  const double step = spec.dtype == DType::kFloat32 ? GridStep(values.size()) : coarse;
  const auto points = static_cast<int64_t>(1 / (2 * step));
  std::vector<int64_t> grid(std::max(values.size(), static_cast<size_t>(2 * points)));
  for (size_t i = 0; i < grid.size(); ++i)
    grid[i] = static_cast<int64_t>(i) % (2 * points) - points;
  std::ranges::shuffle(grid, random);
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = static_cast<double>(2 * grid[i] + 1) * step;
    values[i] = domain.positive ? 0.75 + value / 2 : value;
  }
  return tensor;
}

}  // namespace

Result<OpSample> OpSample::Parse(const std::string& text) {
  static const std::regex whole(
      "([a-z0-9_]+)(?:\\(([^)]*)\\))?=((?:[a-z0-9]+\\[(?:[0-9]+\\*?)?(?:,[0-9]+)*\\],?)*)");
  static const std::regex attribute("([a-z0-9_]+)=((?:[^,]|,(?![a-z0-9_]+=))*)"),
      input("([a-z0-9]+)\\[([^\\]]*)\\]");
  const Status wrong = Status::Error(StatusCode::kConfig,
                                     "--inputs %s: it must be OP=INPUT,... or "
                                     "OP(ATTRIBUTE=VALUE,...)=INPUT,... with inputs such as "
                                     "float32[8*,16] (the star marks the dimension of samples)",
                                     text.c_str());
  std::smatch parts;
  if (!std::regex_match(text, parts, whole)) return wrong;
  OpSample sample{parts[1], {}, {}};
  const std::string attributes = parts[2], inputs = parts[3];
  const std::sregex_iterator end;
  for (std::sregex_iterator at(attributes.begin(), attributes.end(), attribute); at != end; ++at) {
    sample.attributes[(*at)[1]] = (*at)[2];
  }
  for (std::sregex_iterator at(inputs.begin(), inputs.end(), input); at != end; ++at) {
    const std::optional<TensorSpec> spec = ParseSpec((*at)[1], (*at)[2]);
    if (!spec.has_value()) return wrong;
    sample.inputs.push_back(*spec);
  }
  return sample;
}

std::string OpSample::Text() const {
  std::string text = op, separator = "(";
  for (const auto& [name, value] : attributes) {
    text += separator + name + "=" + value;
    separator = ",";
  }
  text += attributes.empty() ? "=" : ")=";
  for (const TensorSpec& input : inputs) {
    text += (&input == inputs.data() ? "" : ",") + std::string(Name(input.dtype)) + "[";
    for (int32_t i = 0; i < input.shape.ndim; ++i) {
      text += (i > 0 ? "," : "") + std::to_string(input.shape[i]);
      if (i == 0 && input.batched != 0) text += "*";
    }
    text += "]";
  }
  return text;
}

int64_t OpSample::samples() const {
  int64_t samples = 0;
  for (const TensorSpec& input : inputs) {
    if (input.batched != 0) samples = std::gcd(samples, input.shape[0]);
  }
  return samples;
}

LoadedOps LoadedOps::Load(const PluginUnderTest& plugin, const OptionValues::Overrides& options,
                          const RankInfo& ranks, const PluginUnderTest* other) {
  LoadedOps ops;
  ops.plugin_ = &plugin;
  if (plugin.file().device == "any") {
    if (other != nullptr) {
      ops.other_host_ = std::make_unique<MemoryHost>(ranks);
      ops.other_ = Must(other->Create<OpLibrary>(*ops.other_host_));
      ops.device_ = ops.other_->device();
    } else {
      ops.host_device_ = std::make_unique<HostDevice>();
      ops.device_ = ops.host_device_.get();
    }
  }
  ops.host_ =
      std::make_unique<MemoryHost>(ranks, std::make_shared<MemoryStoreTable>(), ops.device_);
  ops.library_ = Must(plugin.Create<OpLibrary>(*ops.host_, options));
  if (ops.device_ == nullptr) ops.device_ = ops.library_->device();
  return ops;
}

Result<MadeOp> LoadedOps::Make(const OpSample& sample) const {
  return Make(sample, OptionValues(plugin_->option_specs(), sample.op, sample.attributes));
}

Result<MadeOp> LoadedOps::Make(const OpSample& sample, const OptionValues& values) const {
  Op* op = nullptr;
  ENGINE_RETURN_IF_ERROR(library_->CreateOp(sample.op, values.options(), &op));
  MadeOp made{.op = std::unique_ptr<Op>(op),
              .data_inputs = sample.inputs.size(),
              .always_in_place = sample.op == "accumulate"};
  ENGINE_RETURN_IF_ERROR(op->Infer(sample.inputs, &made.signature));
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    if (sample.inputs[i].batched == 0) made.parameters |= 1u << i;
  }
  return made;
}

Problem MakeProblem(const OpSample& sample, const Domain& domain, const MadeOp& op, int64_t samples,
                    uint32_t seed) {
  std::mt19937 random(seed + static_cast<uint32_t>(samples));
  const int64_t full = sample.samples();
  const auto make = [&](const TensorSpec& spec) {
    return RandomTensor(WithSamples(spec, full, samples), domain, random);
  };
  Problem problem{.samples = samples};
  for (const TensorSpec& input : sample.inputs) problem.inputs.push_back(make(input));
  const OpSignature& signature = op.signature;
  for (int32_t i = 0; i < signature.parameter_count; ++i) {
    const ParameterSpec& parameter = signature.parameters[i];
    problem.inputs.push_back(make({parameter.shape, parameter.dtype, 0}));
    if (parameter.trained != 0) continue;  // statistics mean something
    const double value = parameter.initializer == Initializer::kOnes ? 1 : 0;
    std::ranges::fill(problem.inputs.back().values, value);
  }
  for (int32_t i = 0; i < signature.output_count; ++i) {
    problem.output_gradients.push_back(make(signature.outputs[i]));
  }
  if (signature.is_loss != 0) problem.output_gradients[0].values = {1, 0, 0};
  return problem;
}

}  // namespace engine::conform
