#include "text_files.h"

#include <algorithm>
#include <cinttypes>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kit/dataset.h"
#include "kit/file.h"

namespace engine::text {
namespace {

namespace fs = std::filesystem;

// The content of a file; kBadData when it is larger than `limit_bytes`.
Result<std::string> ReadFile(const std::string& path, int64_t limit_bytes) {
  ENGINE_ASSIGN_OR_RETURN(const kit::MappedFile file, kit::MappedFile::Open(path));
  const auto bytes = file.bytes();
  if (static_cast<int64_t>(bytes.size()) <= limit_bytes)
    return std::string(bytes.begin(), bytes.end());
  return Status::Error(StatusCode::kBadData, "%s: larger than the limit of %" PRId64 " bytes",
                       path.c_str(), limit_bytes);
}

Status CannotRead(const fs::path& path, const std::error_code& reason) {
  return Status::Error(StatusCode::kMissingInput, "cannot read '%s': %s", path.c_str(),
                       reason.message().c_str());
}

bool IsLeftOut(const fs::directory_entry& entry, const std::string& name) {
  std::error_code ignored;
  return name.starts_with('.') || entry.is_symlink(ignored) ||
         (name.starts_with("build") && entry.is_directory(ignored));
}

// Paths of the files below `folder` that may hold text, sorted.
Result<std::vector<std::string>> ListFiles(const fs::path& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (IsLeftOut(*it, it->path().filename().native())) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file(error) && !error &&
               it->file_size(error) <= static_cast<uintmax_t>(kMaxTextFileBytes)) {
      paths.push_back(it->path().native());
    }
    if (error) break;
  }
  if (error) return CannotRead(folder, error);
  std::sort(paths.begin(), paths.end());
  return paths;
}

// In the order of sorted paths, so that all ranks, and a run that goes on, see one and the same
// text.
Result<std::vector<std::string>> ReadFolder(const std::string& folder) {
  ENGINE_ASSIGN_OR_RETURN(const auto paths, ListFiles(folder));
  std::vector<std::string> contents;
  int64_t total = 0;
  for (const std::string& path : paths) {
    ENGINE_ASSIGN_OR_RETURN(std::string content, ReadFile(path, kMaxTextBytes));
    if (content.empty() || !IsText(content)) continue;
    total += static_cast<int64_t>(content.size());
    if (total > kMaxTextBytes) {
      return Status::Error(StatusCode::kBadData,
                           "%s: there are more than %" PRId64
                           " bytes of text in this folder; give a smaller one",
                           folder.c_str(), kMaxTextBytes);
    }
    contents.push_back(std::move(content));
  }
  if (!contents.empty()) return contents;
  return Status::Error(StatusCode::kBadData, "%s: there are no text files in this folder",
                       folder.c_str());
}

}  // namespace

bool IsText(std::string_view content) noexcept {
  return content.find('\0') == content.npos && kit::IsUtf8(content);
}

Result<std::vector<std::string>> ReadTextFiles(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return CannotRead(path, error);
  if (fs::is_directory(status)) return ReadFolder(path);
  ENGINE_ASSIGN_OR_RETURN(std::string content, ReadFile(path, kMaxTextBytes));
  return std::vector<std::string>{std::move(content)};
}

}  // namespace engine::text
