// A published option, as text of fixed size in the descriptor:
//
//   choices = "" | word ("|" word)*       enums, and only they; word = [A-Za-z0-9_.:/-]+
//   range   = min < max                   numbers only, both ends allowed; min = max = 0: none
//   default = "" | value                  "": the option must be given, unless it is a string
//
// A default is parsed and checked by the rules of values, so what is published can be used.

#include "core/plugin/option_value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "core/plugin/layer_list.h"

namespace engine::plugin {
namespace {

std::string NumberText(double number) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  return {text, end};
}

bool IsNumeric(OptionType type) {
  return type == OptionType::kInt || type == OptionType::kFloat;
}

template <typename T>
bool ParseNumber(std::string_view text, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

bool MayHaveRange(OptionType type) {
  return IsNumeric(type) || type == OptionType::kInts || type == OptionType::kString;
}

bool HasRange(const OptionSpec& spec) {
  return MayHaveRange(spec.type) && spec.min < spec.max;
}

// "2,-3"; nothing for no number.
bool ParseList(std::string_view text, std::vector<int64_t>* out) {
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (!ParseNumber(text.substr(begin, end - begin), &out->emplace_back())) return false;
    begin = end + 1;
  }
  return true;
}

// The numbers that a range bounds.
std::vector<double> Ranged(const OwnedOption& value) {
  switch (value.type) {
    case OptionType::kInt:
      return {static_cast<double>(value.integer)};
    case OptionType::kFloat:
      return {value.number};
    case OptionType::kInts:
      return {value.integers.begin(), value.integers.end()};
    default:
      return {static_cast<double>(value.string.size())};
  }
}

// The words of an enum that a configuration writes without quotes.
bool IsCapitals(std::string_view word) {
  return std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isupper(c) || std::isdigit(c) || c == '_';
  });
}

bool IsChoice(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == ':' || c == '/';
  });
}

Status CheckOptionSpec(const OptionSpec& spec) {
  const auto refuse = [](const char* why) { return Status::Error(StatusCode::kPlugin, "%s", why); };
  if (spec.type > OptionType::kOp) return refuse("has an unknown type");
  if (!IsText(spec.default_value) || !IsText(spec.choices) || !IsText(spec.doc)) {
    return refuse("has text that does not end, or with control characters");
  }
  if (!(spec.min <= spec.max)) return refuse("has a range whose end is below its start");
  if (spec.min < spec.max && !MayHaveRange(spec.type)) {
    return refuse("has a range, but neither numbers nor a length");
  }
  const std::vector<std::string> choices = Choices(spec);
  if ((spec.type == OptionType::kEnum) != !choices.empty()) {
    return refuse("must have choices if, and only if, it is an enum");
  }
  if (!std::all_of(choices.begin(), choices.end(), IsChoice) ||
      std::set<std::string>(choices.begin(), choices.end()).size() != choices.size()) {
    return refuse("has choices that are not distinct words separated by '|'");
  }
  if (spec.type == OptionType::kOp && !IsName(spec.default_value.view())) {
    return refuse("must have an op as its default");
  }
  if (IsRequired(spec)) return {};
  const auto value = ParseOptionValue(spec, spec.default_value.view());
  const Status status = value.ok() ? CheckOptionValue(spec, *value) : value.status();
  if (status.ok()) return {};
  return Status::Error(StatusCode::kPlugin, "has a wrong default: %s", status.message());
}

}  // namespace

std::vector<OptionValue> Views(const std::vector<OwnedOption>& owned) {
  std::vector<OptionValue> views;
  views.reserve(owned.size());
  for (const OwnedOption& option : owned) {
    OptionValue& view = views.emplace_back(OptionValue{.name = option.name,
                                                       .type = option.type,
                                                       .integer = option.integer,
                                                       .number = option.number,
                                                       .string = option.string,
                                                       .integers = option.integers});
    if (option.layers == nullptr) continue;
    view.layers = option.layers->specs().data();
    view.layer_count = option.layers->specs().size();
  }
  return views;
}

std::span<const LayerSpec> LayerList::View(const std::vector<OwnedLayer>& layers) {
  std::vector<LayerSpec>& specs = lists_.emplace_back();
  for (const OwnedLayer& layer : layers) {
    const auto residual = View(layer.residual), shortcut = View(layer.shortcut);
    specs.push_back({.op = layer.op,
                     .name = layer.name,
                     .attributes = attributes_.emplace_back(Views(layer.attributes)),
                     .trainable = layer.trainable ? 1u : 0u,
                     .priority = layer.priority,
                     .learning_rate_scale = layer.learning_rate_scale,
                     .weight_decay_scale = layer.weight_decay_scale,
                     .residual = residual.data(),
                     .shortcut = shortcut.data(),
                     .residual_count = static_cast<uint32_t>(residual.size()),
                     .shortcut_count = static_cast<uint32_t>(shortcut.size())});
  }
  return specs;
}

Result<OwnedOption> ParseOptionValue(const OptionSpec& spec, std::string_view text) {
  OwnedOption value{.name = std::string(spec.name.view()), .type = spec.type};
  bool parsed = true;
  switch (spec.type) {
    case OptionType::kBool:
      value.integer = text == "true";
      parsed = text == "true" || text == "false";
      break;
    case OptionType::kInt:
      parsed = ParseNumber(text, &value.integer);
      break;
    case OptionType::kFloat:
      parsed = ParseNumber(text, &value.number);
      break;
    case OptionType::kInts:
      parsed = ParseList(text, &value.integers);
      break;
    case OptionType::kLayers:
      parsed = false;  // only a file has them
      break;
    case OptionType::kString:
    case OptionType::kEnum:
    case OptionType::kOp:
      value.string = text;
      break;
  }
  if (parsed) return value;
  return Status::Error(StatusCode::kConfig, "'%.*s' is not of type %s",
                       static_cast<int>(text.size()), text.data(), Name(spec.type));
}

Status CheckOptionValue(const OptionSpec& spec, const OwnedOption& value) {
  if (spec.type == OptionType::kFloat && !std::isfinite(value.number)) {
    return Status::Error(StatusCode::kConfig, "%s is not a finite number", ToText(value).c_str());
  }
  for (const double number : HasRange(spec) ? Ranged(value) : std::vector<double>()) {
    if (number >= spec.min && number <= spec.max) continue;
    const std::string text = spec.type == OptionType::kInts ? NumberText(number) : ToText(value);
    return Status::Error(StatusCode::kConfig, "%s is outside %s", text.c_str(),
                         DescribeRange(spec).c_str());
  }
  if (spec.type == OptionType::kEnum) {
    const std::vector<std::string> choices = Choices(spec);
    if (std::find(choices.begin(), choices.end(), value.string) == choices.end()) {
      return Status::Error(StatusCode::kConfig, "%s is none of %s", ToText(value).c_str(),
                           DescribeRange(spec).c_str());
    }
  }
  return {};
}

bool IsRequired(const OptionSpec& spec) {
  if (!spec.default_value.view().empty() || spec.type == OptionType::kInts) return false;
  return spec.type != OptionType::kString || spec.min >= 1;
}

bool IsWrittenBare(const OptionSpec& spec) {
  const std::vector<std::string> words = Choices(spec);
  return spec.type == OptionType::kEnum && std::all_of(words.begin(), words.end(), IsCapitals);
}

std::vector<std::string> Choices(const OptionSpec& spec) {
  std::vector<std::string> words;
  const std::string_view list = spec.choices.view();
  if (list.empty()) return words;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find('|', begin), list.size());
    words.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::string DescribeRange(const OptionSpec& spec) {
  if (HasRange(spec)) {
    const char* unit = spec.type == OptionType::kString ? " bytes" : "";
    return NumberText(spec.min) + " .. " + NumberText(spec.max) + unit;
  }
  std::string list;
  for (const std::string& word : Choices(spec)) list += (list.empty() ? "" : " | ") + word;
  return list;
}

std::string ToText(const OwnedOption& value) {
  switch (value.type) {
    case OptionType::kBool:
      return value.integer ? "true" : "false";
    case OptionType::kInt:
      return std::to_string(value.integer);
    case OptionType::kFloat:
      return NumberText(value.number);
    case OptionType::kInts: {
      std::string list;
      for (const int64_t number : value.integers) {
        list += (list.empty() ? "" : ", ") + std::to_string(number);
      }
      return "[" + list + "]";
    }
    default:
      break;
  }
  return '"' + value.string + '"';
}

std::vector<const OptionSpec*> OptionsOf(const std::vector<OptionSpec>& options,
                                         std::string_view scope) {
  std::vector<const OptionSpec*> found;
  for (const OptionSpec& option : options) {
    if (option.scope.view() == scope) found.push_back(&option);
  }
  return found;
}

Status CheckOptionSpecs(const std::vector<OptionSpec>& options,
                        const std::vector<std::string>& ops) {
  std::set<std::pair<std::string_view, std::string_view>> names;
  for (const OptionSpec& spec : options) {
    if (!IsText(spec.scope) || !IsText(spec.name) || !IsName(spec.name.view())) {
      return Status::Error(StatusCode::kPlugin, "an option's name is not [a-z][a-z0-9_]*");
    }
    const std::string name(spec.name.view()), scope(spec.scope.view());
    if (!scope.empty() && std::find(ops.begin(), ops.end(), scope) == ops.end()) {
      return Status::Error(StatusCode::kPlugin, "option '%s' belongs to '%s', which is no op here",
                           name.c_str(), scope.c_str());
    }
    if (!names.emplace(spec.scope.view(), spec.name.view()).second) {
      return Status::Error(StatusCode::kPlugin, "option '%s' is published twice", name.c_str());
    }
    const Status status = CheckOptionSpec(spec);
    if (!status.ok()) {
      return Status::Error(StatusCode::kPlugin, "option '%s' %s", name.c_str(), status.message());
    }
  }
  return {};
}

bool IsName(std::string_view text) {
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  return !text.empty() && text.size() <= 32 && lower(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [lower](char c) { return lower(c) || (c >= '0' && c <= '9') || c == '_'; });
}

}  // namespace engine::plugin
