// The buffers of one collective whose result can be told right from wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/communicator.h"
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

// One rank's. Elements are whole numbers that encode rank and index with a prime period, so that
// neither a missing rank nor a swapped chunk goes unnoticed.
class CollectiveBuffers {
 public:
  CollectiveBuffers(const CollectiveCase& c, const RankInfo& info);

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
  const int64_t bytes_;                 // of one element
  std::vector<float> sums_;             // over ranks, of one period
  std::vector<std::byte> send_, recv_;  // in place: one of them holds both, the other is empty
  std::byte* send_data_ = nullptr;
  std::byte* recv_data_ = nullptr;
};

}  // namespace engine::bench
