// Which plugins there are, learned from their files without running any of their code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plugin/plugin_set.h"
#include "engine/status.h"

namespace engine::plugins {

// A file that is called like a plugin. If it has a problem only path and name are known, the name
// from the file's name if it has no descriptor; if not, the entry is one that can be loaded.
struct PluginFile : plugin::PluginEntry {
  Status problem;  // why it cannot be loaded, one sentence; ok() if it can as far as the file tells
  bool shadowed = false;  // another file of this name comes first in the search order
  std::string doc, compiler;
  uint16_t abi_major = 0, abi_minor = 0, min_host_minor = 0;
};

// `path` from `base` on; from the current directory where that is empty.
std::string AbsolutePath(const std::string& path, const std::string& base = "");

// kConfig unless there is a folder `path`.
Status CheckFolder(const std::string& path);

// Reads and checks the descriptor of one file: ELF, symbol, magic, ABI major, minor, layouts,
// bounds, name against the file's name, and the published options themselves (defaults parse and
// are in range).
PluginFile ReadPluginFile(const std::string& path);

// The same, and all else that a run would refuse the file for: every problem that can be seen, one
// sentence each. What looks right is loaded in a process of its own, which runs its constructors.
PluginFile CheckPluginFile(const std::string& path, std::vector<Status>* problems);

class PluginCatalog {
 public:
  // All files libengine_*.so of `folders`, in order; folders that do not exist are skipped. Never
  // the current directory: an empty folder name is ignored.
  static PluginCatalog Scan(const std::vector<std::string>& folders);

  const std::vector<PluginFile>& files() const { return files_; }
  const std::vector<std::string>& folders() const { return folders_; }

  // The first file called `name`, or the file `name` if it holds a slash. kPlugin with the reason
  // when it is broken; when there is none, with the folders that were searched and the nearest
  // name.
  Result<PluginFile> Find(const std::string& name) const;

 private:
  std::vector<std::string> folders_;
  std::vector<PluginFile> files_;
};

}  // namespace engine::plugins
