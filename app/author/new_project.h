// The project that `engine plugins new` writes: of each kind a plugin that does something small, for
// its author to change. The files are those of templates/ and plugins/ (CMakeLists.txt), in which the
// word my_plugin stands for its name.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/status.h"

namespace engine::author {

struct Template {
  std::string_view file;  // "scheduler.cc"
  std::string_view text;
};
// All of them. They are part of the program.
std::span<const Template> Templates();

// Makes the folder `name` with the project of a plugin of that name and kind, the word of
// Name(PluginKind). kInvalidArgument when name or kind is wrong or the folder is there; kStorage.
Status WriteProject(const std::string& name, const std::string& kind);

}  // namespace engine::author
