// Balance: slices of one transfer go round robin over the servers, from one that key or round chooses.
// A large tensor has the same number of slices at each; small ones are spread by the hash.
#include "partition.h"

#include <algorithm>

namespace engine::zmq_ps {
namespace {

// The finalizer of splitmix64 (Steele, Lea, Flood 2014): all bits of the result depend on all bits
// of x.
uint64_t Mix(uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Of `count` elements, or rows.
uint64_t SlicesOf(uint64_t count, uint64_t element_bytes, const PartitionRule& rule) noexcept {
  const uint64_t per_slice = std::max<uint64_t>(rule.slice_bytes / element_bytes, 1);
  uint64_t slices = std::max<uint64_t>((count + per_slice - 1) / per_slice, 1);
  if (count * element_bytes >= rule.servers * rule.min_slice_bytes && count >= rule.servers) {
    slices = (slices + rule.servers - 1) / rule.servers * rule.servers;
  }
  return std::min(slices, std::max<uint64_t>(count, 1));
}

}  // namespace

void Cut(const Transfer& transfer, uint64_t round, const PartitionRule& rule,
         std::vector<Slice>* out, uint64_t row) {
  out->clear();
  const bool has_parts =
      transfer.kind == TransferKind::kReduceScatter || transfer.kind == TransferKind::kAllGather;
  const uint32_t parts = has_parts ? rule.world_size : 1;
  const bool is_barrier = transfer.kind == TransferKind::kBarrier;
  const uint64_t count = is_barrier ? 0 : static_cast<uint64_t>(transfer.count);
  const uint64_t rows = count / row;
  const uint64_t slices = SlicesOf(rows, row * SizeOf(transfer.dtype), rule);
  const uint64_t first_server = Mix(transfer.key != 0 ? transfer.key : round);
  const uint64_t base = rows / slices, longer = rows % slices;
  for (uint32_t part = 0; part < parts; ++part) {
    uint64_t offset = part * count;
    for (uint64_t i = 0; i < slices; ++i) {
      Slice slice;
      slice.owner = has_parts ? part : 0;
      if (transfer.kind == TransferKind::kBroadcast) {
        slice.owner = static_cast<uint32_t>(transfer.root);
      }
      slice.offset = offset;
      slice.count = (base + (i < longer ? 1 : 0)) * row;
      slice.server = static_cast<uint32_t>((first_server + out->size()) % rule.servers);
      offset += slice.count;
      out->push_back(slice);
    }
  }
}

void CutForAll(const PartitionRule& rule, std::vector<Slice>* out) {
  out->clear();
  for (uint32_t server = 0; server < rule.servers; ++server) out->push_back({.server = server});
}

}  // namespace engine::zmq_ps
