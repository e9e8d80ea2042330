#include "app/config/describe.h"

#include <algorithm>
#include <vector>

#include "app/plugins/dependencies.h"
#include "app/plugins/option_value.h"
#include "app/plugins/words.h"

namespace engine::config {
namespace {

using Row = std::vector<std::string>;

// Columns two spaces apart, the last one as long as it is.
std::string Table(const std::vector<Row>& rows, const std::string& indent) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string Kind(const plugin::PluginEntry& entry) {
  const std::string kind = Name(entry.kind);
  return entry.device == "any" ? kind : kind + " (" + entry.device + ")";
}

std::string OptionTable(const std::vector<const OptionSpec*>& specs, const std::string& indent) {
  std::vector<Row> rows;
  for (const OptionSpec* spec : specs) {
    const bool required = plugins::IsRequired(*spec);
    rows.push_back({std::string(spec->name.view()), Name(spec->type),
                    required ? "required" : plugins::ToText(plugins::DefaultOf(*spec)),
                    plugins::DescribeRange(*spec), std::string(spec->doc.view())});
  }
  return Table(rows, indent);
}

}  // namespace

std::string ListPlugins(const plugins::PluginCatalog& catalog) {
  std::vector<Row> usable{{"NAME", "KIND", "VERSION", "WHAT", "FILE"}};
  std::string broken, shadowed;
  for (const plugins::PluginFile& entry : catalog.files()) {
    const bool may_be_used = entry.problem.ok() && !entry.shadowed;
    const Status problem =
        may_be_used ? plugins::CheckDependencies(entry.path).WithContext("%s", entry.path.c_str())
                    : entry.problem;
    if (!problem.ok()) {
      broken += "  " + entry.name + "  " + problem.message() + "\n";
    } else if (entry.shadowed) {
      const auto first =
          std::find_if(catalog.files().begin(), catalog.files().end(),
                       [&](const plugins::PluginFile& file) { return file.name == entry.name; });
      shadowed += "  " + entry.name + "  " + entry.path + "  (by " + first->path + ")\n";
    } else {
      usable.push_back({entry.name, Kind(entry), entry.version, entry.doc, entry.path});
    }
  }
  std::string text = usable.size() > 1 ? Table(usable, "")
                     : catalog.folders().empty()
                         ? "no plugins: no folder is searched\n"
                         : "no plugins in " + plugins::Join(catalog.folders()) + "\n";
  if (!broken.empty()) text += "\ncannot be loaded:\n" + broken;
  if (!shadowed.empty()) text += "\nshadowed by a file found earlier:\n" + shadowed;
  return text;
}

std::string DescribePlugin(const plugins::PluginFile& entry) {
  if (!entry.problem.ok())
    return entry.name + " cannot be loaded: " + entry.problem.message() + "\n";
  std::string text = entry.name + " " + entry.version + ": " + entry.doc + "\n";
  text += Table({{"kind", Kind(entry)},
                 {"file", entry.path},
                 {"ABI", std::to_string(entry.abi_major) + "." + std::to_string(entry.abi_minor) +
                             ", needs " + std::to_string(entry.abi_major) + "." +
                             std::to_string(entry.min_host_minor)},
                 {"compiler", entry.compiler}},
                "  ");
  const auto options = plugins::OptionsOf(entry.options, "");
  text += options.empty() ? "no options\n" : "options (name, type, default, range)\n";
  text += OptionTable(options, "  ");
  if (!entry.ops.empty()) text += "ops with their attributes\n";
  for (const std::string& op : entry.ops) {
    text += "  " + op + "\n" + OptionTable(plugins::OptionsOf(entry.options, op), "    ");
  }
  return text;
}

}  // namespace engine::config
