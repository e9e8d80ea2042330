#include "app/author/new_project.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "app/plugins/option_value.h"
#include "app/plugins/words.h"
#include "engine/plugin.h"

namespace engine::author {
namespace {

constexpr std::string_view kWord = "my_plugin";
constexpr size_t kLongestName = sizeof(PluginInfo::name.text) - 1;

std::vector<std::string> Kinds() {
  std::vector<std::string> kinds;
  for (auto kind = uint32_t{1}; kind <= static_cast<uint32_t>(kLastPluginKind); ++kind) {
    kinds.emplace_back(Name(static_cast<PluginKind>(kind)));
  }
  return kinds;
}

Status CheckWords(const std::string& name, const std::string& kind) {
  if (!plugins::IsName(name) || name.size() > kLongestName) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "'%s' is no name of a plugin: it needs [a-z][a-z0-9_]*, at most %zu "
                         "characters",
                         name.c_str(), kLongestName);
  }
  const std::vector<std::string> kinds = Kinds();
  for (const std::string& one : kinds) {
    if (one == kind) return {};
  }
  return Status::Error(StatusCode::kInvalidArgument, "--kind %s is none of %s%s", kind.c_str(),
                       plugins::Join(kinds).c_str(), plugins::DidYouMean(kind, kinds).c_str());
}

// What becomes of a template in the project, or "": it is of another kind.
std::string FileOf(std::string_view file, const std::string& name, const std::string& kind) {
  const size_t dot = file.rfind('.');
  if (file.substr(dot) == ".in") return std::string(file.substr(0, dot));
  return file.substr(0, dot) == kind ? name + std::string(file.substr(dot)) : "";
}

Status Write(const std::string& path, std::string_view text, const std::string& name) {
  std::ofstream file(path, std::ios::binary);
  for (size_t at; (at = text.find(kWord)) != text.npos; text.remove_prefix(at + kWord.size())) {
    file << text.substr(0, at) << name;
  }
  file << text;
  file.close();
  if (file) return {};
  return Status::Error(StatusCode::kStorage, "cannot write %s: %s", path.c_str(), strerror(errno));
}

}  // namespace

Status WriteProject(const std::string& name, const std::string& kind) {
  ENGINE_RETURN_IF_ERROR(CheckWords(name, kind));
  std::error_code error;
  if (!std::filesystem::create_directory(name, error)) {
    if (error && error != std::errc::file_exists) {
      return Status::Error(StatusCode::kStorage, "cannot make the folder %s: %s", name.c_str(),
                           error.message().c_str());
    }
    return Status::Error(StatusCode::kInvalidArgument,
                         "%s is there already: choose another name, or another folder to begin in",
                         name.c_str());
  }
  for (const auto& [file, text] : Templates()) {
    const std::string made = FileOf(file, name, kind);
    if (!made.empty()) ENGINE_RETURN_IF_ERROR(Write(name + "/" + made, text, name));
  }
  return {};
}

}  // namespace engine::author
