#include "text_files.h"

#include <algorithm>
#include <cinttypes>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kit/dataset.h"

namespace engine::text {
namespace {

namespace fs = std::filesystem;

// The length of the UTF-8 sequence that `text` begins with, or 0. Unicode 15, table 3-7: the second
// byte alone tells overlong forms, surrogates and what lies beyond U+10FFFF.
size_t SequenceLength(std::string_view text) noexcept {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2   ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || text.size() < length) return 0;
  const uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

// The content of a file; kBadData when it is larger than `limit_bytes`.
Result<std::string> ReadFile(const std::string& path, int64_t limit_bytes) {
  constexpr size_t kChunkBytes = 1 << 16;
  ENGINE_ASSIGN_OR_RETURN(const kit::InputFile file, kit::InputFile::Open(path));
  const size_t limit = static_cast<size_t>(limit_bytes);
  std::string content;
  // The file may have changed since it was opened: its end is where read() says so.
  while (file.size_bytes() <= limit_bytes && content.size() <= limit) {
    const size_t used = content.size();
    content.resize(used + kChunkBytes);
    const ssize_t got = read(file.fd(), content.data() + used, kChunkBytes);
    if (got < 0 && errno != EINTR) {
      return Status::Error(StatusCode::kMissingInput, "cannot read '%s': %s", path.c_str(),
                           std::strerror(errno));
    }
    content.resize(used + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return content;
  }
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
  while (!content.empty()) {
    const size_t length = content.front() == '\0' ? 0 : SequenceLength(content);
    if (length == 0) return false;
    content.remove_prefix(length);
  }
  return true;
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
