// The first file of a name wins, in the order of the folders and then of the alphabet. A file that
// is broken still takes its name: it is reported when it is asked for, and never replaced in
// silence by another one further down.

#include "app/plugins/catalog.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "app/plugins/dependencies.h"
#include "app/plugins/descriptor.h"
#include "app/plugins/elf_reader.h"
#include "app/plugins/inner_plugins.h"
#include "app/plugins/load_library.h"
#include "app/plugins/words.h"

namespace engine::plugins {
namespace {

namespace fs = std::filesystem;

// The descriptor symbol of our ABI, or a clause on what the file exports instead.
Result<ElfSymbol> FindDescriptor(const ElfFile& elf) {
  ENGINE_ASSIGN_OR_RETURN(const auto symbols, elf.ExportedObjects(ENGINE_PLUGIN_SYMBOL_PREFIX));
  const std::string ours = ENGINE_PLUGIN_SYMBOL_PREFIX ENGINE_ABI_MAJOR_TEXT;
  for (const ElfSymbol& symbol : symbols) {
    if (symbol.name == ours) return symbol;
  }
  if (symbols.empty()) {
    return Status::Error(StatusCode::kPlugin, "exports no %s; is it an engine plugin?",
                         ours.c_str());
  }
  return Status::Error(
      StatusCode::kPlugin,
      "exports %s, this engine loads v%s; rebuild it against the headers of this engine",
      symbols.front().name.c_str(), ENGINE_ABI_MAJOR_TEXT);
}

// Whoever can replace a library runs code as its user: refuses one that others than its user and
// root may write, or that lies where others may put another in its place.
Status CheckWriters(const fs::path& path) {
  struct stat of {};
  if (stat(path.c_str(), &of) != 0) return {};  // whoever opens it says why
  const bool foreign = of.st_uid != 0 && of.st_uid != geteuid();
  for (fs::path at = path; (of.st_mode & S_IWOTH) == 0 || S_ISDIR(of.st_mode);) {
    // What lies in a folder with this bit, such as /tmp, only its owner can replace.
    const bool sticky = (of.st_mode & S_ISVTX) != 0 && !(foreign && at == path.parent_path());
    if ((of.st_mode & S_IWOTH) != 0 && !sticky) break;
    if (at == at.root_path() || stat(at.parent_path().c_str(), &of) != 0) return {};
    at = at.parent_path();
  }
  return Status::Error(StatusCode::kPlugin,
                       "everybody may replace it: take the right to write away from others, from "
                       "the file and from its folders (chmod o-w)");
}

Status ReadDescriptor(PluginFile* entry) {
  ENGINE_ASSIGN_OR_RETURN(const ElfFile elf, ElfFile::Open(entry->path));
  ENGINE_ASSIGN_OR_RETURN(const ElfSymbol symbol, FindDescriptor(elf));
  ENGINE_ASSIGN_OR_RETURN(const auto bytes, elf.Content(symbol));
  if (entry->name.empty()) {
    return Status::Error(StatusCode::kPlugin,
                         "the file of a plugin must be called libengine_<name>.so");
  }
  return DecodeDescriptor(bytes, entry);
}

PluginFile Unread(const std::string& path) {
  PluginFile entry;
  entry.load = LoadLibrary;
  entry.make_inner = MakeInner;
  entry.path = AbsolutePath(path);
  entry.name = PluginNameOfFile(entry.path);
  return entry;
}

std::vector<std::string> PluginFiles(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    if (!PluginNameOfFile(it->path().string()).empty()) files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string AbsolutePath(const std::string& path, const std::string& base) {
  std::error_code error;
  const fs::path absolute = fs::absolute(fs::path(base) / path, error);
  return error ? path : absolute.lexically_normal().string();
}

Status CheckFolder(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return {};
  return Status::Error(StatusCode::kConfig, "there is no folder %s to search for plugins",
                       path.c_str());
}

PluginFile ReadPluginFile(const std::string& path) {
  PluginFile entry = Unread(path);
  const Status writers = CheckWriters(entry.path);
  entry.problem =
      (writers.ok() ? ReadDescriptor(&entry) : writers).WithContext("%s", entry.path.c_str());
  if (entry.name.empty()) entry.name = fs::path(path).stem().string();
  return entry;
}

PluginFile CheckPluginFile(const std::string& path, std::vector<Status>* problems) {
  PluginFile entry = Unread(path);
  const auto note = [&](const Status& found) {
    if (!found.ok()) problems->push_back(found.WithContext("%s", entry.path.c_str()));
  };
  note(CheckWriters(entry.path));
  note(ReadDescriptor(&entry));
  note(CheckDependencies(entry.path));
  if (problems->empty()) note(TryToLoad(entry));
  return entry;
}

PluginCatalog PluginCatalog::Scan(const std::vector<std::string>& folders) {
  PluginCatalog catalog;
  std::set<std::string> names, seen;
  for (const std::string& folder : folders) {
    const std::string absolute = AbsolutePath(folder + "/.");  // the normal form ends in a slash
    if (folder.empty() || !seen.insert(absolute).second) continue;
    catalog.folders_.push_back(absolute.substr(0, absolute.size() - 1));
    for (const std::string& file : PluginFiles(folder)) {
      PluginFile entry = ReadPluginFile(file);
      entry.shadowed = !names.insert(entry.name).second;
      catalog.files_.push_back(std::move(entry));
    }
  }
  return catalog;
}

Result<PluginFile> PluginCatalog::Find(const std::string& name) const {
  if (name.find('/') != std::string::npos) {
    PluginFile entry = ReadPluginFile(name);
    if (!entry.problem.ok()) return entry.problem;
    return entry;
  }
  std::vector<std::string> names;
  for (const PluginFile& entry : files_) {
    if (entry.name == name) {
      if (!entry.problem.ok()) return entry.problem.WithContext("plugin '%s'", name.c_str());
      return entry;
    }
    names.push_back(entry.name);
  }
  return Status::Error(StatusCode::kPlugin, "plugin '%s' was not found in %s%s", name.c_str(),
                       folders_.empty() ? "any folder (none is searched)" : Join(folders_).c_str(),
                       DidYouMean(name, names).c_str());
}

}  // namespace engine::plugins
