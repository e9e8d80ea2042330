// Which all-reduce is fastest.
#pragma once

#include <cstddef>

namespace engine::tcp {

enum class AllReduceAlgorithm {
  kExchange,               // every rank sends all it has to every peer and reduces all of it
  kReduceScatterAllGather  // every rank reduces one slice and sends the result to every peer
};

// S = bytes of the buffer, N = ranks:
//
//                              bytes sent by a rank    waits for a peer
//   exchange                   (N-1) S                 1 per part of S
//   reduce-scatter all-gather  2 (N-1)/N S             2 per part of S/N
//
// With two ranks the bytes are equal, so the exchange always wins. With more it wins while a wait
// costs more than the bytes: with 3 and 4 ranks on two cores the lines cross at 16 to 32 KiB.
// README.md has the numbers, and why none of gloo's own algorithms is here.
constexpr size_t kExchangeUpToBytes = 16 << 10;

constexpr AllReduceAlgorithm ChooseAllReduce(int world_size, size_t size_bytes) noexcept {
  return world_size <= 2 || size_bytes <= kExchangeUpToBytes
             ? AllReduceAlgorithm::kExchange
             : AllReduceAlgorithm::kReduceScatterAllGather;
}

}  // namespace engine::tcp
