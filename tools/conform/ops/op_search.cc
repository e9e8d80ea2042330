#include "tools/conform/ops/op_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <utility>

namespace engine::conform {
namespace {

constexpr size_t kMostBatched = 6, kMostUnbatched = 2;  // samples with the same attributes
constexpr size_t kAttributeSets = 24;

// Odd sizes, then such as a kernel may insist on. The last dimension of those with three is
// divided by 3: queries, keys and values.
std::vector<Shape> FirstShapes() {
  return {Shape{5, 18}, Shape{5, 7, 18}, Shape{5, 6, 4, 3}, Shape{7},
          Shape{4, 24}, Shape{4, 8, 24}, Shape{4, 8, 8, 4}, Shape{8}};
}

Shape Without(Shape shape, int32_t dimension) {
  std::copy(shape.dims + dimension + 1, shape.dims + shape.ndim, shape.dims + dimension);
  shape.dims[--shape.ndim] = 0;
  return shape;
}

// Shapes that another input may have beside a first one: the same, targets, a table, a matrix, a
// vector, a product's other factor, what is added to each sample.
std::vector<Shape> RelatedShapes(const Shape& first) {
  const int64_t last = first[-1];
  std::vector<Shape> all = {first, Shape{first[0]}, Shape{last}, Shape{4, last}, Shape{last, 4}};
  if (first.ndim > 1) {
    all.push_back(Without(first, first.ndim - 1));
    all.push_back(Without(first, 0));
    all.emplace_back(first)[-1] = 1;
    Shape& factor = all.emplace_back(first);
    factor[-2] = last;
    factor[-1] = 4;
  }
  return all;
}

std::vector<TensorSpec> RelatedSpecs(const TensorSpec& first, bool few_types) {
  std::vector<TensorSpec> all;
  for (const Shape& shape : RelatedShapes(first.shape)) {
    for (const DType dtype : kAllDTypes) {
      const bool usual = dtype == DType::kFloat32 || dtype == DType::kInt32;
      if (few_types && !usual && dtype != first.dtype) continue;
      if (first.batched != 0 && shape[0] == first.shape[0]) all.push_back({shape, dtype, 1});
      all.push_back({shape, dtype, 0});
    }
  }
  return all;
}

// Values to try for an attribute, the default first. Numbers are small: what is made of them is
// allocated.
std::vector<std::string> Texts(const OptionSpec& spec) {
  std::vector<std::string> texts;
  if (!spec.default_value.view().empty()) texts.emplace_back(spec.default_value.view());
  const auto add_numbers = [&](std::initializer_list<double> numbers) {
    for (const double number : numbers) {
      if (spec.min < spec.max && (number < spec.min || number > spec.max)) continue;
      std::ostringstream text;
      text << number;
      texts.push_back(text.str());
    }
  };
  if (spec.type == OptionType::kBool) texts.insert(texts.end(), {"true", "false"});
  if (spec.type == OptionType::kInt) add_numbers({3, 2, 4, 8, 24, 1, std::ceil(spec.min)});
  if (spec.type == OptionType::kFloat) add_numbers({0.5, 0.25, 2, spec.min, spec.max});
  if (spec.type == OptionType::kInts) texts.insert(texts.end(), {"2", "2,2", "3,3", "2,2,2"});
  if (spec.type == OptionType::kString && texts.empty()) texts.emplace_back("a");
  std::istringstream words{std::string(spec.choices.view())};
  for (std::string word; std::getline(words, word, '|');) texts.push_back(word);
  return texts;
}

class Searcher {
 public:
  Searcher(const std::string& op, std::span<const OptionSpec> specs, const TryInfer& infer)
      : op_(op), infer_(infer) {
    for (const OptionSpec& spec : specs) {
      if (spec.scope.view() == op) attributes_.push_back({std::string(spec.name.view()), spec});
    }
  }

  SearchResult Run() {
    std::vector<OptionValues::Overrides> sets = AttributeSets();
    for (size_t inputs : {1, 2, 3, 4, 0}) {
      // One that takes one input may take two: a sum, a concatenation.
      if (!result_.found.empty() && inputs != 2) continue;
      for (const OptionValues::Overrides& values : sets) {
        Search(values, inputs);
        if (!result_.found.empty()) break;
      }
      if (!result_.found.empty()) sets = {result_.found[0].attributes};
    }
    if (!result_.found.empty()) ChangeAttributes();
    const auto rarest = std::ranges::min_element(
        refusals_, {}, [](const auto& sentence) { return sentence.second; });
    if (rarest != refusals_.end()) result_.refusal = rarest->first;
    return std::move(result_);
  }

 private:
  struct Attribute {
    std::string name;
    const OptionSpec& spec;
    bool required() const {
      return spec.default_value.view().empty() &&
             (spec.type != OptionType::kString || spec.min >= 1);
    }
  };

  // Values of the attributes that have none, also lists. First the same number for all.
  std::vector<OptionValues::Overrides> AttributeSets() const {
    std::vector<OptionValues::Overrides> sets;
    std::mt19937 random(1);
    const bool any = std::ranges::any_of(attributes_, &Attribute::required);
    for (size_t k = 0; k < (any ? kAttributeSets : 1); ++k) {
      OptionValues::Overrides& values = sets.emplace_back();
      for (const Attribute& attribute : attributes_) {
        const std::vector<std::string> texts = Texts(attribute.spec);
        if (!attribute.required() || texts.empty()) continue;
        values[attribute.name] = texts[(k < kAttributeSets / 2 ? k : random()) % texts.size()];
      }
    }
    return sets;
  }

  bool Accepts(const OpSample& sample) {
    ++result_.tried;
    const Status status = infer_(sample);
    if (status.ok()) return true;
    const std::string sentence(status.message());
    ++refusals_[sentence];
    if (status.code() != StatusCode::kConfig || sentence.empty()) {
      result_.wrong = sample.Text() + " gave no kConfig with a sentence, but '" + sentence + "'";
    }
    return false;
  }

  // Whether more of this kind are wanted: other ranks, dtypes, sizes.
  void Try(const OptionValues::Overrides& values, const std::vector<TensorSpec>& inputs) {
    OpSample sample{op_, values, inputs};
    size_t& count = sample.samples() > 0 ? batched_ : unbatched_;
    if (count >= (sample.samples() > 0 ? kMostBatched : kMostUnbatched)) return;
    std::string kind = inputs.empty() ? "" : std::to_string(inputs[0].shape[-1]);
    for (const TensorSpec& input : inputs) {
      kind += Name(input.dtype) + std::to_string(input.batched);
      if (&input == &inputs[0]) kind += std::to_string(input.shape.ndim);
    }
    if (kinds_.contains(kind) || !Accepts(sample)) return;
    kinds_.insert(kind);
    ++count;
    result_.found.push_back(std::move(sample));
  }

  void Search(const OptionValues::Overrides& values, size_t inputs) {
    if (inputs == 0) return Try(values, {});
    for (const uint32_t batched : {1u, 0u}) {
      for (const Shape& shape : FirstShapes()) {
        for (const DType dtype : kAllDTypes) {
          // A value or a parameter: nobody knows.
          if (batched == 0 && (dtype == DType::kBFloat16 || dtype == DType::kFloat16)) continue;
          SearchFrom(values, {shape, dtype, batched}, inputs);
        }
      }
    }
  }

  void SearchFrom(const OptionValues::Overrides& values, const TensorSpec& first, size_t inputs) {
    if (inputs == 1 || inputs == 4) return Try(values, std::vector(inputs, first));
    for (const TensorSpec& second : RelatedSpecs(first, inputs == 3)) {
      if (inputs == 2) {
        Try(values, {first, second});
        continue;
      }
      for (const TensorSpec& third : RelatedSpecs(first, true)) Try(values, {first, second, third});
    }
  }

  // One sample more for each attribute, or for each word of it.
  void ChangeAttributes() {
    const std::vector<OpSample> found = result_.found;
    for (const Attribute& attribute : attributes_) {
      const std::vector<std::string> texts = Texts(attribute.spec);
      for (size_t i = 1; i < texts.size(); ++i) {
        if (!Change(found, attribute.name, texts[i])) continue;
        if (attribute.spec.type != OptionType::kEnum) break;
      }
    }
  }

  bool Change(const std::vector<OpSample>& found, const std::string& name,
              const std::string& text) {
    for (OpSample sample : found) {
      if (sample.attributes[name] == text) return false;
      sample.attributes[name] = text;
      if (!Accepts(sample)) continue;
      result_.found.push_back(std::move(sample));
      return true;
    }
    return false;
  }

  const std::string op_;
  const TryInfer& infer_;
  std::vector<Attribute> attributes_;
  SearchResult result_;
  std::map<std::string, int64_t> refusals_;
  std::set<std::string> kinds_;
  size_t batched_ = 0, unbatched_ = 0;
};

}  // namespace

SearchResult FindSamples(const std::string& op, std::span<const OptionSpec> specs,
                         const TryInfer& infer) {
  return Searcher(op, specs, infer).Run();
}

}  // namespace engine::conform
