// What the ranks say to each other.
//
//   rendezvous  rank r to rank 0: int32 r                 then rank 0 to r: header
//   transfer    rank r to rank 0: header payload          then rank 0 to r: header payload
//
// A payload has header.size_bytes bytes. Rank 0 answers with a failure instead when it gives up, so
// that all ranks report the cause and not that rank 0 went away.
#pragma once

#include "engine/communicator.h"

namespace star_comm {

struct Header {
  uint64_t sequence = 0;
  uint64_t key = 0;
  uint64_t size_bytes = 0;  // 0 where only the other direction carries data
  engine::TransferKind kind = engine::TransferKind::kBarrier;
  engine::Reduction reduction = engine::Reduction::kSum;
  int32_t root = 0;
  engine::StatusCode failure = engine::StatusCode::kOk;
  int32_t culprit = 0;  // of the failure
  uint32_t unit = 0;    // for messages
};

}  // namespace star_comm
