// Transfers that were overtaken by less urgent ones.
#pragma once

#include <functional>
#include <string>

#include "tools/trace/timeline_index.h"

namespace engine::trace {

// A transfer is more urgent than another when it belongs to an earlier step, or to the same and is
// needed by an earlier forward task. It is overtaken when a less urgent one is started after it was
// ready and before it is started itself. Only transfers of buckets count.
struct Inversions {
  uint64_t overtaken = 0;        // transfers
  uint64_t overtaken_bytes = 0;  // their payload
  uint64_t bytes = 0;            // payload of those that overtook, each counted once
  // Of the transfer that lost most time: for how long those that overtook it were on the wire
  // between its being ready and its start, and how many bytes they have.
  int64_t longest_ns = 0;
  uint64_t longest_bytes = 0;
  int32_t rank = -1;
  uint64_t step = 0;
  std::string name;

  void Add(const Inversions& other);
};

enum class TransferStart {
  kSubmission,  // what the scheduler and the order of ranks decide
  kFirstByte,   // with what happens in the communicator; those that do not say it are left out
};

// Of the transfers of one rank that belong to a step for which `counts` is true.
Inversions FindInversions(const TimelineIndex& index, TransferStart start,
                          const std::function<bool(uint64_t step)>& counts);

}  // namespace engine::trace
