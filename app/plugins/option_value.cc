// A published option, as text of fixed size in the descriptor:
//
//   choices = "" | word ("|" word)*       enums, and only they; word = [A-Za-z0-9_.:/-]+
//   range   = min < max                   numbers only, both ends allowed; min = max = 0: none
//   default = "" | value                  "": the option must be given, unless it is a string
//
// A default is parsed and checked by the rules of values, so what is published can be used.

#include "app/plugins/option_value.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "app/plugins/words.h"

namespace engine::plugins {
namespace {

using plugin::OwnedOption;

constexpr const char *kLetters = "abcdefghijklmnopqrstuvwxyz",
                     *kNameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_",
                     *kCapitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

std::string NumberText(double number) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  return {text, end};
}

template <typename T>
bool ParseNumber(std::string_view text, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

bool MayHaveRange(OptionType type) {
  return type == OptionType::kInt || type == OptionType::kFloat || type == OptionType::kInts ||
         type == OptionType::kString || type == OptionType::kLayers;
}

bool HasRange(const OptionSpec& spec) {
  return MayHaveRange(spec.type) && spec.min < spec.max;
}

// "2,-3"; nothing for no number.
bool ParseList(std::string_view text, std::vector<int64_t>* out) {
  if (text.empty()) return true;
  const std::vector<std::string> numbers = Split(text, ',');
  return std::all_of(numbers.begin(), numbers.end(), [out](const std::string& number) {
    return ParseNumber(number, &out->emplace_back());
  });
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
    case OptionType::kLayers:
      return {value.layers == nullptr ? 0.0 : static_cast<double>(value.layers->size())};
    default:
      return {static_cast<double>(value.string.size())};
  }
}

// The words of an enum that a configuration writes without quotes.
bool IsCapitals(std::string_view word) {
  return word.find_first_not_of(kCapitals) == word.npos;
}

bool IsChoice(std::string_view word) {
  const std::string allowed = std::string(kNameCharacters) + kCapitals + "-.:/";
  return !word.empty() && word.find_first_not_of(allowed) == word.npos;
}

auto FindOption(const std::vector<OwnedOption>& options, std::string_view name) {
  return std::find_if(options.begin(), options.end(),
                      [name](const OwnedOption& option) { return option.name == name; });
}

Status CheckOptionSpec(const OptionSpec& spec) {
  const auto refuse = [](const char* why) { return Status::Error(StatusCode::kPlugin, "%s", why); };
  if (spec.type > OptionType::kPlugin) return refuse("has an unknown type");
  if (!IsText(spec.default_value) || !IsText(spec.choices) || !IsText(spec.doc)) {
    return refuse("has text that does not end, or with control characters");
  }
  if (!(spec.min <= spec.max)) return refuse("has a range whose end is below its start");
  if (spec.min < spec.max && !MayHaveRange(spec.type)) {
    return refuse("has a range, but is neither numbers nor a text or list");
  }
  const std::vector<std::string> choices = Choices(spec);
  const bool is_plugin = spec.type == OptionType::kPlugin;
  if (!is_plugin && (spec.type == OptionType::kEnum) != !choices.empty()) {
    return refuse("must have choices if, and only if, it is an enum");
  }
  if (is_plugin && spec.choices.view() != "communicator" && spec.choices.view() != "scheduler") {
    return refuse("must say of which kind its plugin is, communicator or scheduler");
  }
  if (!std::all_of(choices.begin(), choices.end(), IsChoice) ||
      std::set<std::string>(choices.begin(), choices.end()).size() != choices.size()) {
    return refuse("has choices that are not distinct words separated by '|'");
  }
  if ((is_plugin || spec.type == OptionType::kOp) && !IsName(spec.default_value.view())) {
    return refuse("must have a name as its default");
  }
  if (IsRequired(spec)) return {};
  const auto value = ParseOptionValue(spec, spec.default_value.view());
  const Status status = value.ok() ? CheckOptionValue(spec, *value) : value.status();
  if (status.ok()) return {};
  return Status::Error(StatusCode::kPlugin, "has a wrong default: %s", status.message());
}

}  // namespace

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
      parsed = text.empty();  // only a file has them
      break;
    case OptionType::kString:
    case OptionType::kEnum:
    case OptionType::kOp:
    case OptionType::kPlugin:
      value.string = text;
      break;
  }
  if (parsed) return value;
  return Status::Error(StatusCode::kConfig, "'%.*s' is not of type %s",
                       static_cast<int>(text.size()), text.data(), Name(spec.type));
}

OwnedOption DefaultOf(const OptionSpec& spec) {
  auto value = ParseOptionValue(spec, spec.default_value.view());
  if (value.ok()) return std::move(*value);
  return {.name = std::string(spec.name.view()), .type = spec.type};
}

Status CheckOptionValue(const OptionSpec& spec, const OwnedOption& value) {
  if (value.type != spec.type) {
    return Status::Error(StatusCode::kConfig, "it is of type %s, not %s", Name(spec.type),
                         Name(value.type));
  }
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

Result<std::vector<OwnedOption>> CompleteAttributes(const plugin::PluginEntry& plugin,
                                                    const std::string& op,
                                                    const std::vector<OwnedOption>& given) {
  const std::string whose = op.empty() ? plugin.Title() : "op '" + op + "'";
  std::vector<OwnedOption> complete;
  for (const OptionSpec* spec : OptionsOf(plugin.options, op)) {
    const auto value = FindOption(given, spec->name.view());
    if (value == given.end()) {
      ENGINE_ASSIGN_OR_RETURN(OwnedOption published,
                              ParseOptionValue(*spec, spec->default_value.view()));
      complete.push_back(std::move(published));
      continue;
    }
    complete.push_back(*value);
    OwnedOption& own = complete.back();
    if (spec->type == OptionType::kInts && own.type == OptionType::kInt) {
      own.type = OptionType::kInts;
      own.integers = {own.integer};
    }
    const Status checked = CheckOptionValue(*spec, own);
    if (!checked.ok()) return checked.WithContext("%s, %s", whose.c_str(), value->name.c_str());
  }
  for (const OwnedOption& attribute : given) {
    if (FindOption(complete, attribute.name) != complete.end()) continue;
    const std::string of = op.empty() ? "" : whose + " of ";
    return Status::Error(StatusCode::kConfig, "%s%s has no %s '%s'", of.c_str(),
                         plugin.Title().c_str(), op.empty() ? "option" : "attribute",
                         attribute.name.c_str());
  }
  return complete;
}

bool DescribesHost(const plugin::PluginEntry& plugin, std::string_view option) {
  constexpr std::string_view kNames[] = {"interface", "hostname", "device", "library", "threads"};
  constexpr double kPathBytes = 4096;  // at most, and of paths alone
  if (option.ends_with("_threads") || option.ends_with("_file")) return true;
  if (std::ranges::find(kNames, option) != std::end(kNames)) return true;
  return plugin.kind == PluginKind::kDataset &&
         std::ranges::any_of(plugin.options, [&](const OptionSpec& spec) {
           return spec.name.view() == option && spec.type == OptionType::kString &&
                  spec.max == kPathBytes;
         });
}

bool IsRequired(const OptionSpec& spec) {
  if (!spec.default_value.view().empty() || spec.type == OptionType::kInts) return false;
  if (spec.type == OptionType::kLayers) return !HasRange(spec) || spec.min >= 1;
  return spec.type != OptionType::kString || spec.min >= 1;
}

bool IsWrittenBare(const OptionSpec& spec) {
  const std::vector<std::string> words = Choices(spec);
  return spec.type == OptionType::kEnum && std::all_of(words.begin(), words.end(), IsCapitals);
}

std::vector<std::string> Choices(const OptionSpec& spec) {
  const std::string_view list = spec.choices.view();
  return list.empty() ? std::vector<std::string>() : Split(list, '|');
}

std::string DescribeRange(const OptionSpec& spec) {
  if (HasRange(spec)) {
    const char* unit = spec.type == OptionType::kString   ? " bytes"
                       : spec.type == OptionType::kLayers ? " blocks"
                                                          : "";
    return NumberText(spec.min) + " .. " + NumberText(spec.max) + unit;
  }
  return Join(Choices(spec), " | ");
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
      std::vector<std::string> numbers;
      for (const int64_t number : value.integers) numbers.push_back(std::to_string(number));
      return "[" + Join(numbers) + "]";
    }
    case OptionType::kLayers:
      return value.layers == nullptr ? "none" : std::to_string(value.layers->size()) + " blocks";
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
  return text.find_first_of(kLetters) == 0 && text.size() <= 32 &&
         text.find_first_not_of(kNameCharacters) == text.npos;
}

}  // namespace engine::plugins
