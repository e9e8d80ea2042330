// The buffers of one collective whose result can be told right from wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/ext/shared_memory.h"
#include "engine/host.h"
#include "engine/tensor.h"

namespace engine::bench {

constexpr int kMaxCheckedRanks = 255;  // of which every sum is exact in every dtype

struct CollectiveCase {
  TransferKind kind = TransferKind::kAllReduce;
  int64_t count = 0;  // elements per rank, as in Transfer
  bool in_place = false;
  DType dtype = DType::kFloat32;
};

// As nccl-tests counts them: of all-gather and reduce-scatter the data of all ranks.
int64_t SizeBytes(const CollectiveCase& c, int ranks);

// The largest case of at most `bytes`, but with one element at least.
CollectiveCase CaseOfSize(TransferKind kind, int64_t bytes, int ranks, bool in_place,
                          DType dtype = DType::kFloat32);

// Memory that a communicator lends, as runs have it for gradients; else memory of this process.
class BufferMemory final : public std::pmr::memory_resource {
 public:
  explicit BufferMemory(SharedMemory* lent) : lent_(lent) {}  // borrowed, or null

 private:
  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* data, size_t bytes, size_t alignment) override;
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  SharedMemory* const lent_;
};

// One rank's. Elements are whole numbers that encode rank and index with a prime period, so that
// neither a missing rank nor a swapped chunk goes unnoticed.
class CollectiveBuffers {
 public:
  CollectiveBuffers(const CollectiveCase& c, const RankInfo& info, SharedMemory* lent = nullptr);

  // The input, and in the output something else.
  void Fill();
  // Zeros, which stay finite however often they are summed.
  void Clear();
  Transfer MakeTransfer(uint64_t key, uint64_t sequence, int64_t timeout_ms) const;
  // Elements of the output that are not what the reference gives. `first`: the first of them in
  // words.
  int64_t CountWrong(std::string* first) const;

 private:
  float Input(int rank, int64_t index) const;
  float Expected(int64_t index) const;
  int64_t SendCount() const;
  int64_t RecvCount() const;

  const CollectiveCase case_;
  const RankInfo info_;
  const int64_t bytes_;      // of one element
  std::vector<float> sums_;  // over ranks, of one period
  BufferMemory memory_;
  std::pmr::vector<std::byte> send_, recv_;  // in place: one of them holds both, the other is empty
  std::byte* send_data_ = nullptr;
  std::byte* recv_data_ = nullptr;
};

}  // namespace engine::bench
