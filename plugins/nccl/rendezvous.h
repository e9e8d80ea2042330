// How the ranks meet: all tell in the store (kit/rendezvous.h) that they have come, and begin a
// communicator with the ids of NCCL that some of them have made: rank 0, and in a large world one
// of every `ranks_per_id`, so that not all connect to one.
//
//   value of <number>/here := version of NCCL, in decimal [" " id of 128 bytes]
//
// Communicators of one run are counted from 0, on every rank in the order of creation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm.h"
#include "engine/host.h"
#include "kit/rendezvous.h"
#include "library.h"

namespace engine::nccl {

struct Settings {
  std::string library = "libnccl.so.2";
  bool symmetric = false;  // memory for transfers
  int min_ctas = 0;        // thread blocks per transfer; 0: NCCL decides
  int max_ctas = 0;
  int cta_policy = 0;  // ncclConfig_t::CTAPolicy
  int64_t ranks_per_id = 128;
};

// What NCCL is told of a communicator.
ncclConfig_t MakeConfig(const Settings& settings) noexcept;

// kRendezvous: all have come, and NCCL did not connect the one named `rank`.
Status DidNotConnect(int32_t rank, int32_t size, int64_t timeout_ms) noexcept;

class Rendezvous {
 public:
  Rendezvous(Host& host, std::shared_ptr<const Library> library, const Settings& settings);

  // Collective unless the world is one. kRendezvous names the first rank that is missing.
  Result<std::unique_ptr<Comm>> Meet();

  // Of the communicator that Meet has made.
  kit::Members members() const { return kit::Members::All(ranks_, rendezvous_.prefix()); }

 private:
  Status CheckPolicy();
  Result<ncclUniqueId> MakeId();
  Result<std::vector<ncclUniqueId>> ShareIds();
  Result<std::unique_ptr<Comm>> Connect(std::vector<ncclUniqueId> ids);

  Host& host_;
  const std::shared_ptr<const Library> library_;
  const Settings settings_;
  const RankInfo ranks_;
  kit::Rendezvous rendezvous_;
};

}  // namespace engine::nccl
