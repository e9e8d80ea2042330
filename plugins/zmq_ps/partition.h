// How a transfer is cut, and which server gets which slice.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/communicator.h"

namespace engine::zmq_ps {

struct Slice {
  uint32_t owner = 0;   // rank that alone contributes or alone receives; 0 where all do both
  uint64_t offset = 0;  // elements, from the start of the larger of the two buffers
  uint64_t count = 0;
  uint32_t server = 0;
};

struct PartitionRule {
  uint32_t servers = 1;
  uint32_t world_size = 1;
  uint64_t slice_bytes = 0;      // at most so many per slice; > 0
  uint64_t min_slice_bytes = 0;  // less is not cut any further for the sake of balance
};

// The slices of a transfer, in order; never none. The same on all ranks for the same key, round,
// kind, dtype and count, and the first slice goes to the server that key and round alone decide:
// so ranks that disagree about the rest meet there. A buffer of min_slice_bytes per server or more
// is cut into the same number of nearly equal slices for each of them. Slices are whole rows of
// `row` elements each, which divides the count.
void Cut(const Transfer& transfer, uint64_t round, const PartitionRule& rule,
         std::vector<Slice>* out, uint64_t row = 1);

// A slice without elements for each server.
void CutForAll(const PartitionRule& rule, std::vector<Slice>* out);

}  // namespace engine::zmq_ps
