#include "app/weights/initial_weights.h"

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <utility>

#include "kit/digest.h"

namespace engine::weights {
namespace {

// A tensor of the file, under the name that it has here.
struct Candidate {
  const StoredTensor* stored = nullptr;
  bool transpose = false, crop = false;
  bool used = false;
};

// std::regex recurses for each character, and a file may have any names: longer ones fit nothing.
bool Fits(const std::string& name, const std::regex& pattern, std::smatch* match = nullptr) {
  constexpr size_t kLongestName = 1000;
  std::smatch unused;
  return name.size() <= kLongestName &&
         std::regex_match(name, match == nullptr ? unused : *match, pattern);
}

// The first rule that fits says the name: it fits the whole one, or all of it but the last part.
class Renaming {
 public:
  explicit Renaming(const std::vector<config::InitRule>& rules) : rules_(rules) {
    for (const config::InitRule& rule : rules) patterns_.emplace_back(rule.from);
  }

  std::pair<std::string, const config::InitRule*> operator()(const std::string& name) const {
    const size_t dot = std::min(name.rfind('.'), name.size());
    for (size_t i = 0; i < rules_.size(); ++i) {
      for (const size_t length : {name.size(), dot}) {
        std::smatch match;
        const std::string head = name.substr(0, length);
        if (!Fits(head, patterns_[i], &match)) continue;
        return {match.format(rules_[i].to) + name.substr(length), &rules_[i]};
      }
    }
    return {name, nullptr};
  }

 private:
  const std::vector<config::InitRule>& rules_;
  std::vector<std::regex> patterns_;
};

std::string ShapeText(const Shape& shape) {
  std::string text;
  for (int32_t i = 0; i < shape.ndim; ++i) text += (i > 0 ? ", " : "(") + std::to_string(shape[i]);
  return shape.ndim == 0 ? "()" : text + ")";
}

// The part of x that begins at its first element.
std::vector<float> Cropped(const std::vector<float>& x, const Shape& from, const Shape& to) {
  std::vector<float> part;
  part.reserve(static_cast<size_t>(to.Count()));
  const int64_t row = to[-1];
  for (int64_t r = 0; r < to.Count(0, -1); ++r) {
    int64_t offset = 0;
    for (int64_t i = to.ndim - 2, rest = r; i >= 0; rest /= to[static_cast<int32_t>(i--)]) {
      const auto dim = static_cast<int32_t>(i);
      offset += rest % to[dim] * from.Count(dim + 1);
    }
    part.insert(part.end(), x.begin() + offset, x.begin() + offset + row);
  }
  return part;
}

bool Contains(const Shape& larger, const Shape& part) {
  if (larger.ndim != part.ndim || part.ndim == 0) return false;
  return std::equal(part.dims, part.dims + part.ndim, larger.dims, std::less_equal());
}

// The values of a parameter, or none where the tensor does not fit it.
std::optional<std::vector<float>> ValuesFor(const Candidate& candidate, const Shape& ours,
                                            const TorchLayout& layout, bool is_checkpoint) {
  const StoredTensor& stored = *candidate.stored;
  if (stored.element == 0) return std::nullopt;
  constexpr Order kSwapped = {1, 0, 2, 3, 4, 5};
  const bool swap = candidate.transpose && stored.shape.ndim == 2;
  const Shape shape = swap ? Permuted(stored.shape, kSwapped) : stored.shape;
  // In its own layout first, then in the other one.
  for (const bool torch : {!is_checkpoint, is_checkpoint}) {
    const Shape& wanted = torch ? layout.torch : ours;
    const bool crops = candidate.crop && Contains(shape, wanted);
    if (!(shape == wanted) && !crops) continue;
    std::vector<float> values = ReadFloats(stored);
    if (swap) values = Permuted(values.data(), stored.shape, kSwapped);
    if (!(shape == wanted)) values = Cropped(values, shape, wanted);
    return torch ? FromTorch(layout, values.data()) : values;
  }
  return std::nullopt;
}

// As much of them as a line of a log has room for.
std::string Listed(const std::vector<std::string>& words) {
  constexpr size_t kRoom = 1200;
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (text.size() + words[i].size() > kRoom) {
      return text + " and " + std::to_string(words.size() - i) + " more";
    }
    text += (i > 0 ? "; " : "") + words[i];
  }
  return text;
}

Result<std::map<std::string, Candidate>> FindCandidates(const WeightFile& file,
                                                        const config::InitOptions& options) {
  const Renaming rename(options.rules);
  std::map<std::string, Candidate> candidates;
  for (const StoredTensor& tensor : file.tensors()) {
    const auto [name, rule] = rename(tensor.name);
    const auto [it, is_new] =
        candidates.emplace(name, Candidate{.stored = &tensor,
                                           .transpose = rule != nullptr && rule->transpose,
                                           .crop = rule != nullptr && rule->crop});
    if (is_new) continue;
    return Status::Error(
        StatusCode::kConfig, "train.init_map: both '%s' and '%s' of %s would be '%s'",
        it->second.stored->name.c_str(), tensor.name.c_str(), options.from.c_str(), name.c_str());
  }
  return candidates;
}

// Of the parameters without values those that nothing allows to be so.
Status CheckAllowed(const std::map<std::string, std::string>& problems,
                    const config::InitOptions& options, const graph::Graph& graph) {
  std::vector<std::string> refused;
  std::vector<std::regex> allowed;
  for (const std::string& pattern : options.allow_missing) {
    allowed.emplace_back(pattern);
    const auto fits = [&](const graph::Parameter& p) { return Fits(p.name, allowed.back()); };
    if (std::ranges::any_of(graph.parameters, fits)) continue;
    return Status::Error(StatusCode::kConfig,
                         "train.init_allow_missing: '%s' fits no parameter of the model",
                         pattern.c_str());
  }
  for (const auto& problem : problems) {
    const auto fits = [&](const std::regex& pattern) { return Fits(problem.first, pattern); };
    if (std::ranges::none_of(allowed, fits)) {
      refused.push_back(problem.first + " " + problem.second);
    }
  }
  if (refused.empty()) return {};
  return Status::Error(
      StatusCode::kConfig,
      "train.init_from: %zu parameters of the model cannot be taken from %s; say how they are "
      "called there (train.init_map), or that they may begin with other values "
      "(train.init_allow_missing): %s",
      refused.size(), options.from.c_str(), Listed(refused).c_str());
}

}  // namespace

Status ReadInitialWeights(const WeightFile& file, const config::InitOptions& options,
                          const std::vector<TorchLayout>& layouts, graph::Graph* graph,
                          InitialWeights* found) {
  ENGINE_ASSIGN_OR_RETURN(auto candidates, FindCandidates(file, options));
  std::map<std::string, std::string> problems;  // by parameter
  kit::Digest digest;
  size_t taken = 0;
  for (size_t i = 0; i < graph->parameters.size(); ++i) {
    graph::Parameter& parameter = graph->parameters[i];
    if (parameter.constant()) continue;
    const std::string wanted = ShapeText(layouts[i].torch);
    const auto candidate = candidates.find(parameter.name);
    if (candidate == candidates.end()) {
      problems[parameter.name] = wanted + " is not there";
      continue;
    }
    candidate->second.used = true;
    const StoredTensor& stored = *candidate->second.stored;
    auto values = ValuesFor(candidate->second, parameter.shape, layouts[i], file.is_checkpoint());
    if (!values) {
      problems[parameter.name] = wanted + " is " + ShapeText(stored.shape) +
                                 (stored.element == 0 ? " of integers" : "") + " there" +
                                 (stored.name == parameter.name ? "" : ", as " + stored.name);
      continue;
    }
    digest.Add(values->data(), values->size() * sizeof(float));
    parameter.values = std::move(*values);
    ++taken;
  }
  found->digest = digest.Text();
  found->notes = {std::to_string(taken) + " parameters begin with values of " + options.from};
  for (const auto& [name, problem] : problems) {
    found->notes.push_back(name + " begins with values of its own: in the file " + problem);
  }
  std::vector<std::string> unused;
  for (const auto& [name, candidate] : candidates) {
    if (!candidate.used) unused.push_back(candidate.stored->name);
  }
  if (!unused.empty()) found->notes.push_back("of the file nothing uses " + Listed(unused));
  return CheckAllowed(problems, options, *graph);
}

}  // namespace engine::weights
