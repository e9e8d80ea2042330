// A file is checked when the catalogue reads it and mapped later, so the header is compared once
// more in memory: whoever replaced the file in between gets an error and not a call into code of
// another ABI. The code of the library runs for the first time in dlopen (its constructors), and
// then in `create`.
//
// A library is never unloaded while the process lives (docs/plugin_abi.md says why), so code and
// constants of an object outlive it.
#include "app/plugins/load_library.h"

#include <dlfcn.h>

#include <boost/dll/shared_library.hpp>
#include <exception>
#include <string>
#include <string_view>

namespace engine::plugins {
namespace {

using plugin::PluginEntry;
namespace dll = boost::dll;

// The dynamic linker's own sentence, out of Boost's "... (dlerror system message: <it>): <errno>".
std::string LinkerText(const std::string& what) {
  constexpr std::string_view kBefore = "system message: ";
  const size_t begin = what.find(kBefore), end = what.rfind("): ");
  if (begin == std::string::npos || end == std::string::npos || end < begin) return what;
  return what.substr(begin + kBefore.size(), end - begin - kBefore.size());
}

// Magic and ABI come before every other field in every ABI, so they are looked at first: the rest
// has the meaning of these headers only if they agree.
Result<CreateFunction> CheckHeader(const PluginHeader& header, const PluginEntry& entry) {
  if (header.magic != kPluginMagic || header.abi_major != ENGINE_ABI_MAJOR ||
      header.name.view() != entry.name || header.kind != entry.kind) {
    return Status::Error(StatusCode::kPlugin,
                         "plugin '%s': %s is not what it was when it was checked; start again",
                         entry.name.c_str(), entry.path.c_str());
  }
  if (header.create == nullptr) {
    return Status::Error(StatusCode::kPlugin, "plugin '%s': %s has no create function",
                         entry.name.c_str(), entry.path.c_str());
  }
  return header.create;
}

}  // namespace

// No lock: dlopen of glibc may be called from any threads, and opening a library twice gives the
// same library.
Result<CreateFunction> LoadLibrary(const PluginEntry& entry) {
  // Boost.DLL has no name for RTLD_NODELETE, but hands unknown bits to dlopen. With it the code
  // stays when `library` ends.
  const auto mode = static_cast<dll::load_mode::type>(RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  try {
    // The overload that throws: the other one loses the linker's message.
    dll::shared_library library(entry.path, mode);
    return CheckHeader(
        library.get<const PluginHeader>(ENGINE_PLUGIN_SYMBOL_PREFIX ENGINE_ABI_MAJOR_TEXT), entry);
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kPlugin, "plugin '%s' cannot be loaded: %s",
                         entry.name.c_str(), LinkerText(error.what()).c_str());
  }
}

}  // namespace engine::plugins
