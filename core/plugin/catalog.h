// Which plugins there are, learned from their files without running any of their code.
#pragma once

#include <string>
#include <vector>

#include "engine/options.h"
#include "engine/plugin.h"
#include "engine/status.h"

namespace engine::plugin {

struct PluginEntry {
  std::string path;  // absolute
  std::string name;  // from the descriptor; from the file's name if there is none
  Status problem;  // why it cannot be loaded, one sentence; ok() if it can as far as the file tells
  bool shadowed = false;  // another file of this name comes first in the search order
  // The rest is valid if problem is ok().
  PluginKind kind = PluginKind::kCommunicator;
  std::string version, doc, device, compiler;
  uint16_t abi_major = 0, abi_minor = 0, min_host_minor = 0;
  std::vector<std::string> ops;
  std::vector<OptionSpec> options;  // of the plugin (empty scope) and of its ops
};

// Reads and checks the descriptor of one file: ELF, symbol, magic, ABI major, minor, fingerprint,
// bounds, name against the file's name, and the published options themselves (defaults parse and
// are in range).
PluginEntry ReadPluginFile(const std::string& path);

class PluginCatalog {
 public:
  // All files libengine_*.so of `folders`, in order; folders that do not exist are skipped. Never
  // the current directory: an empty folder name is ignored.
  static PluginCatalog Scan(const std::vector<std::string>& folders);

  const std::vector<PluginEntry>& entries() const { return entries_; }
  const std::vector<std::string>& folders() const { return folders_; }

  // The first entry called `name`, or the file `name` if it holds a slash. kPlugin with the reason
  // when it is broken; when there is none, with the folders that were searched and the nearest
  // name.
  Result<PluginEntry> Find(const std::string& name) const;

 private:
  std::vector<std::string> folders_;
  std::vector<PluginEntry> entries_;
};

}  // namespace engine::plugin
