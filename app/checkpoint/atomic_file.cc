#include "app/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace engine::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSyncBytes = 32 << 20;

// Data that lie in their pages as in those of the file go from memory to the disk themselves: to copy them
// to the page cache first, and it to the disk, takes an order more of processor time. Not every file system
// can.
kit::UniqueFd OpenDirect(const std::string& path) {
  return kit::UniqueFd(open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
}

// Whether `path` is still the name of the open file: its writer may have renamed it in between.
bool IsNameOf(const char* path, int fd) {
  struct stat by_name = {}, by_fd = {};
  return lstat(path, &by_name) == 0 && fstat(fd, &by_fd) == 0 && by_name.st_ino == by_fd.st_ino &&
         by_name.st_dev == by_fd.st_dev;
}

// Removes the temporary files of writers that no longer live. Best effort: what cannot be looked at
// or removed stays.
void RemoveAbandoned(const std::string& folder, const std::string& prefix) {
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    if (it->path().filename().native().compare(0, prefix.size(), prefix) != 0) continue;
    const char* path = it->path().c_str();
    const kit::UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && IsNameOf(path, fd.get())) unlink(path);
  }
}

}  // namespace

bool SyncFolder(const std::string& folder) {
  const kit::UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd && (fsync(fd.get()) == 0 || errno == EINVAL);
}

Result<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path,
                                                       std::function<void()> progress) {
  const fs::path target(path);
  const std::string name = target.filename().native();
  if (name.empty() || name == "." || name == "..") {
    return Status::Error(StatusCode::kStorage, "cannot write '%s': it is not the name of a file",
                         path.c_str());
  }
  // Renamed over a device or a pipe, the file would take its place.
  std::error_code ignored;
  if (fs::is_other(fs::status(target, ignored))) {
    return Status::Error(StatusCode::kStorage,
                         "cannot write '%s': it is a device or a pipe; name a file", path.c_str());
  }
  const std::string folder = target.has_parent_path() ? target.parent_path().native() : ".";
  const std::string prefix = "." + name + ".tmp.";
  RemoveAbandoned(folder, prefix);
  const std::string temporary =
      folder + "/" + prefix + std::to_string(getpid()) + "." + std::to_string(gettid());
  std::unique_ptr<AtomicFile> file(new AtomicFile(path, folder, temporary, std::move(progress)));
  ENGINE_RETURN_IF_ERROR(file->Open());
  return file;
}

Result<std::unique_ptr<AtomicFile>> AtomicFile::Join(const std::string& path,
                                                     const std::string& temporary,
                                                     std::function<void()> progress) {
  std::unique_ptr<AtomicFile> file(new AtomicFile(path, "", temporary, std::move(progress)));
  file->fd_ = kit::UniqueFd(open(temporary.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file->fd_) return file->Error("open");
  file->direct_ = OpenDirect(temporary);
  return file;
}

// Another writer may take the new file for an abandoned one before it is locked, and remove it:
// then it has no link any more, and another is made. That writer looks through the folder once, so
// this ends.
Status AtomicFile::Open() {
  for (;;) {
    fd_ = kit::UniqueFd(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd_) return Error("create");
    int locked = flock(fd_.get(), LOCK_EX);
    while (locked != 0 && errno == EINTR) locked = flock(fd_.get(), LOCK_EX);
    struct stat info {};
    if (locked != 0 || fstat(fd_.get(), &info) != 0) return Error("lock");
    if (info.st_nlink > 0) break;
  }
  direct_ = OpenDirect(temporary_);
  return {};
}

AtomicFile::~AtomicFile() {
  if (fd_ && !folder_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::Write(const void* data, size_t size_bytes) {
  return WriteAt(std::exchange(end_, end_ + size_bytes), data, size_bytes);
}

Status AtomicFile::WriteAt(uint64_t offset, const void* data, size_t size_bytes) {
  const char* next = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const size_t in_page = offset % kPageBytes;
    size_t size = std::min(size_bytes, kSyncBytes);
    const bool alike = direct_ && reinterpret_cast<uintptr_t>(next) % kPageBytes == in_page;
    const bool direct = alike && in_page == 0 && size >= kPageBytes;
    if (direct) size -= size % kPageBytes;
    if (alike && in_page != 0) size = std::min(size, kPageBytes - in_page);
    const ssize_t written =
        pwrite((direct ? direct_ : fd_).get(), next, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && direct) {  // the page cache may do it, or has the reason
      direct_.Close();
      continue;
    }
    if (written < 0) return Error("write");
    next += written;
    offset += static_cast<uint64_t>(written);
    size_bytes -= static_cast<size_t>(written);
    unsynced_bytes_ += static_cast<size_t>(written);
    if (unsynced_bytes_ < kSyncBytes) continue;
    // Else all of it would wait for the fsync at the end, which tells nobody how far it is.
    if (fdatasync(fd_.get()) != 0) return Error("fdatasync");
    unsynced_bytes_ = 0;
    if (progress_) progress_();
  }
  return {};
}

Status AtomicFile::Commit() {
  if (fsync(fd_.get()) != 0) return Error("fsync");
  if (folder_.empty()) return {};
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Error("rename");
  // From here on the temporary name is gone. An error of close after fsync has nothing to tell.
  fd_.Close();
  if (!SyncFolder(folder_)) return Error("fsync the folder of");
  return {};
}

Status AtomicFile::Error(const char* action) const {
  const int reason = errno;
  return Status::Error(StatusCode::kStorage, "cannot write '%s': %s failed: %s", path_.c_str(),
                       action, std::strerror(reason));
}

}  // namespace engine::checkpoint
