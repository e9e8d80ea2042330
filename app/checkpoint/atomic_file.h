// A file that appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::checkpoint {

// Makes names in a folder survive a power failure; false with errno. Some file systems have no
// fsync for folders and say EINVAL: there is nothing more to do on them, and that is no failure.
bool SyncFolder(const std::string& folder);

// Writes ".NAME.tmp.PID.TID" beside the target and renames it over the target in Commit. The
// temporary file is locked (flock) while its writer lives, so the next writer of the same target
// can tell what a killed process left from what another is still writing, and removes the former.
//
// Writers of one target may run at once, in threads or processes: the last Commit wins. All errors
// are kStorage with the path and the reason of the system.
class AtomicFile {
 public:
  // `progress`, which may be null, is called each time that more of it is on the disk.
  static Result<std::unique_ptr<AtomicFile>> Create(const std::string& path,
                                                    std::function<void()> progress = nullptr);
  // What another one writes to `path`, in this process or another, as its temporary(): parts of it may be
  // written, and Commit brings those to the disk. The rest stays with the other.
  static Result<std::unique_ptr<AtomicFile>> Join(const std::string& path,
                                                  const std::string& temporary,
                                                  std::function<void()> progress = nullptr);
  // Without Commit, removes the temporary file; the target is as it was.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Behind what was written so, or at any place. Cheapest where `data` and its place in the file are the same
  // modulo kPageBytes.
  static constexpr size_t kPageBytes = 4096;
  Status Write(const void* data, size_t size_bytes);
  Status WriteAt(uint64_t offset, const void* data, size_t size_bytes);

  // fsync, rename, fsync of the folder; after OK the content survives a power failure. After an
  // error the target is as it was, except that a failure of the last fsync leaves the new content
  // in place without that promise. Call it once.
  Status Commit();

  std::string temporary() const { return std::filesystem::absolute(temporary_); }

 private:
  AtomicFile(std::string path, std::string folder, std::string temporary,
             std::function<void()> progress)
      : path_(std::move(path)),
        folder_(std::move(folder)),
        temporary_(std::move(temporary)),
        progress_(std::move(progress)) {}
  Status Open();
  Status Error(const char* action) const;

  const std::string path_;
  const std::string folder_;
  const std::string temporary_;
  const std::function<void()> progress_;
  uint64_t end_ = 0;  // of what Write has written
  size_t unsynced_bytes_ = 0;
  kit::UniqueFd fd_, direct_;  // direct_: past the page cache, if the file system can
};

}  // namespace engine::checkpoint
