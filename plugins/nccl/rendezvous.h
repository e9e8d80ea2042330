// How the ranks meet: an id of NCCL that rank 0 makes goes through the store, and all begin a
// communicator with it.
//
//   <number>/here/<rank>  := version of NCCL, in decimal     this rank has come
//   <number>/id           := 128 bytes                       by rank 0
//
// Communicators of one run are counted from 0, on every rank in the order of creation.
#pragma once

#include <memory>
#include <string>

#include "clock.h"
#include "comm.h"
#include "engine/host.h"
#include "library.h"
#include "members.h"

namespace engine::nccl {

struct CommSettings {
  int64_t rendezvous_timeout_ms = 30000;
  int min_ctas = 0;  // thread blocks per transfer; 0: NCCL decides
  int max_ctas = 0;
};

// What NCCL is told of a communicator.
ncclConfig_t MakeConfig(const CommSettings& settings) noexcept;

class Rendezvous {
 public:
  Rendezvous(Host& host, std::shared_ptr<const Library> library, const CommSettings& settings);

  // Collective unless the world is one. kRendezvous names the first rank that is missing.
  Result<std::unique_ptr<Comm>> Meet();

  // Of the communicator that Meet has made.
  Members members() const { return Members::All(ranks_, prefix_); }

 private:
  Status ChoosePrefix();
  Status CheckIn();
  Status ShareId(ncclUniqueId* id);
  Result<ncclComm_t> Begin(const ncclUniqueId& id);
  Status AwaitReady(ncclComm_t comm);
  Status CompareVersions();
  Status Missing();
  std::string HereKey(int rank) const;

  Host& host_;
  const std::shared_ptr<const Library> library_;
  const CommSettings settings_;
  const RankInfo ranks_;
  const Clock::time_point deadline_;
  std::string prefix_ = "0";
};

}  // namespace engine::nccl
