// Ranks that are processes of one host and were started one by one: they meet in a folder, which is
// also the store of their Hosts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "tests/conformance/communicator/file_host.h"

namespace engine::bench {

// Rank 0 removes the folder when all are done or it fails itself.
class FolderMeeting {
 public:
  FolderMeeting(std::filesystem::path folder, const RankInfo& ranks, int64_t timeout_ms)
      : folder_(std::move(folder)), timeout_ms_(timeout_ms), host_(ranks, folder_) {}
  ~FolderMeeting() {
    std::error_code ignored;
    if (owned_) std::filesystem::remove_all(folder_, ignored);
  }

  test::FileHost& host() { return host_; }

  // Rank 0 makes the folder, which must not be there, the others wait for it: kRendezvous when it
  // does not come.
  Status Open() {
    if (host_.rank_info().rank > 0) {
      std::string ignored;
      const Status opened = host_.StoreGetString("open", timeout_ms_, &ignored);
      if (opened.ok()) return {};
      return Status::Error(StatusCode::kRendezvous, "rank 0 did not make the folder %s",
                           folder_.c_str());
    }
    std::error_code error;
    owned_ = std::filesystem::create_directory(folder_, error);
    if (owned_) return host_.StoreSet("open", {});
    if (error) {
      return Status::Error(StatusCode::kStorage, "cannot make the folder %s: %s", folder_.c_str(),
                           error.message().c_str());
    }
    return Status::Error(StatusCode::kInvalidArgument,
                         "%s is there already: another run uses it, or one was killed: remove it",
                         folder_.c_str());
  }

  // At the end of a run that went well: rank 0 waits for the others.
  void Close() {
    const RankInfo ranks = host_.rank_info();
    (void)host_.StoreSet("done/" + std::to_string(ranks.rank), {});
    std::string ignored;
    for (int r = 1; ranks.rank == 0 && r < ranks.world_size; ++r) {
      (void)host_.StoreGetString("done/" + std::to_string(r), timeout_ms_, &ignored);
    }
  }

 private:
  const std::filesystem::path folder_;
  const int64_t timeout_ms_;
  test::FileHost host_;
  bool owned_ = false;
};

}  // namespace engine::bench
