#include "app/checkpoint/retention.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "app/checkpoint/atomic_file.h"

namespace engine::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Numbered {
  int64_t step = 0;
  std::string path;
};

Status StorageError(const char* action, const std::string& path, int reason) {
  return Status::Error(StatusCode::kStorage, "cannot %s '%s': %s", action, path.c_str(),
                       std::strerror(reason));
}

std::string FolderOf(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.native();
}

std::string NumberOf(int64_t step) {
  return fmt::format(".{:06}", step);
}

// The step in a second name of `path`; -1 when `name` is none.
int64_t StepInName(const std::string& path, const std::string& name) {
  const std::string stem = fs::path(path).stem().native() + ".";
  if (!name.starts_with(stem)) return -1;
  int64_t step = -1;
  std::from_chars(name.data() + stem.size(), name.data() + name.size(), step);
  return step >= 0 && fs::path(NameAtStep(path, step)).filename().native() == name ? step : -1;
}

Result<std::vector<Numbered>> FindNumbered(const std::string& path) {
  std::vector<Numbered> found;
  std::error_code error;
  const std::string folder = FolderOf(path);
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const int64_t step = StepInName(path, it->path().filename().native());
    if (step >= 0) found.push_back({step, it->path().native()});
  }
  if (error) return StorageError("look through", folder, error.value());
  return found;
}

}  // namespace

std::string NameAtStep(const std::string& path, int64_t step) {
  fs::path file(path);
  const std::string ending = file.extension().native();
  return file.replace_extension().native() + NumberOf(step) + ending;
}

std::string FirstName(const std::string& path, int64_t step) {
  std::string first = path;
  const size_t at = path.rfind(NumberOf(step));
  if (at != std::string::npos) first.erase(at, NumberOf(step).size());
  return NameAtStep(first, step) == path ? first : path;
}

std::vector<std::string> FindCheckpoints(const std::string& path) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  const auto add = [&](const std::string& file) {
    std::error_code error;
    const auto written = fs::last_write_time(file, error);
    if (!error) found.emplace_back(written, file);
  };
  if (const auto numbered = FindNumbered(path); numbered.ok()) {
    for (const Numbered& other : *numbered) add(NameAtStep(path, other.step));
  }
  add(path);
  // The first name before the second one of the same file.
  std::ranges::stable_sort(found, [&](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : (a.second == path && b.second != path);
  });
  std::vector<std::string> paths;
  for (auto& [written, file] : found) paths.push_back(std::move(file));
  return paths;
}

Status CheckCanKeep(const std::string& path, int64_t keep) {
  if (keep <= 1) return {};
  ENGINE_ASSIGN_OR_RETURN(const auto file, AtomicFile::Create(path));
  // If the process is killed here, the next AtomicFile of `path` removes both names.
  const std::string second = file->temporary() + ".link";
  const bool linked = link(file->temporary().c_str(), second.c_str()) == 0;
  const int reason = errno;
  unlink(second.c_str());
  if (linked) return {};
  return Status::Error(
      StatusCode::kStorage,
      "output.keep_checkpoints is %lld, which takes hard links, and there are none "
      "in '%s' (%s): set it to 1 or write to another file system",
      static_cast<long long>(keep), FolderOf(path).c_str(), std::strerror(reason));
}

// Removes before it adds, so that runs which are killed in between leave no more files each time.
Status KeepNewest(const std::string& path, int64_t step, int64_t keep) {
  if (keep <= 1) return {};
  ENGINE_ASSIGN_OR_RETURN(std::vector<Numbered> others, FindNumbered(path));
  // In the order in which they are kept.
  std::sort(others.begin(), others.end(), [step](const Numbered& a, const Numbered& b) {
    const bool a_left = a.step > step, b_left = b.step > step;
    return a_left != b_left ? b_left : a.step > b.step;
  });
  int64_t kept = 1;  // the new one
  for (const Numbered& other : others) {
    // One of this step is of an earlier run, or of this one before it went back.
    if (other.step != step && ++kept <= keep) continue;
    if (unlink(other.path.c_str()) == 0 || errno == ENOENT) continue;
    return StorageError("remove the old checkpoint", other.path, errno);
  }
  const std::string name = NameAtStep(path, step);
  if (link(path.c_str(), name.c_str()) != 0) return StorageError("make", name, errno);
  const std::string folder = FolderOf(path);
  return SyncFolder(folder) ? Status() : StorageError("fsync", folder, errno);
}

}  // namespace engine::checkpoint
