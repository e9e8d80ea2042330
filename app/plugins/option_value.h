// Values of published options: parsing, checking, wording.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/plugin/plugin_set.h"
#include "engine/options.h"
#include "engine/status.h"

namespace engine::plugins {

// "true", "3", "0.5", "2,2" or a word, by the type of the option; the whole text must be the value.
// The message of an error (kConfig) is a clause: "'x' is not an int".
Result<plugin::OwnedOption> ParseOptionValue(const OptionSpec& spec, std::string_view text);

// The published default; of a required option the zero or empty value of its type.
plugin::OwnedOption DefaultOf(const OptionSpec& spec);

// Range and choices. The message of an error (kConfig) is a clause: "65 is outside 1 .. 64".
Status CheckOptionValue(const OptionSpec& spec, const plugin::OwnedOption& value);

// All attributes that `plugin` publishes for `op`, or options of its own (""): as given, where the
// first of a name counts and an int does for ints, the others as published. kConfig when one is
// unknown, of another type, out of its range.
Result<std::vector<plugin::OwnedOption>> CompleteAttributes(
    const plugin::PluginEntry& plugin, const std::string& op,
    const std::vector<plugin::OwnedOption>& given);

// Whether an option of `plugin` says how a host is, so that ranks may differ in it: by its name, which is
// interface, hostname, device, library, threads or ends in _threads or _file; of datasets, whose contents are
// compared, also a path (kit::PathOption).
bool DescribesHost(const plugin::PluginEntry& plugin, std::string_view option);

// An option without default must be given a value.
bool IsRequired(const OptionSpec& spec);

// An enum whose words a configuration writes without quotes.
bool IsWrittenBare(const OptionSpec& spec);

// Words of an enum.
std::vector<std::string> Choices(const OptionSpec& spec);

// "1 .. 64", "cosine | linear", or "" when everything of the type is allowed.
std::string DescribeRange(const OptionSpec& spec);

// The value as the configuration writes it: strings and words of an enum in quotes.
std::string ToText(const plugin::OwnedOption& value);

// The published options of one scope, in the order they are published.
std::vector<const OptionSpec*> OptionsOf(const std::vector<OptionSpec>& options,
                                         std::string_view scope);

// What the list itself can get wrong: names, types, ranges, choices, defaults, duplicates, scopes
// that are none of `ops`. kPlugin, a clause that names the option.
Status CheckOptionSpecs(const std::vector<OptionSpec>& options,
                        const std::vector<std::string>& ops);

// [a-z][a-z0-9_]{0,31}: names of plugins, ops and options.
bool IsName(std::string_view text);

// A field of a descriptor: ends in a NUL and holds nothing that a terminal would interpret.
template <size_t kSize>
bool IsText(const FixedString<kSize>& field) {
  const std::string_view text = field.view();
  const auto controls = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  return text.size() < kSize && std::ranges::none_of(text, controls);
}

}  // namespace engine::plugins
