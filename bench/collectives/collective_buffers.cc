#include "bench/collectives/collective_buffers.h"

#include <algorithm>
#include <cstdio>

namespace engine::bench {
namespace {

constexpr int64_t kPeriod = 251;
constexpr float kGarbage = -1;
constexpr int64_t kElementBytes = sizeof(float);

bool HoldsAllRanks(TransferKind kind) {
  return kind == TransferKind::kReduceScatter || kind == TransferKind::kAllGather;
}

// At most 251 * 256, and the sum over 256 ranks at most 251 * 32896 < 2^24: exact.
float Input(int rank, int64_t index) {
  return static_cast<float>((index % kPeriod + 1) * (rank + 1));
}

float Sum(int ranks, int64_t index) {
  return static_cast<float>((index % kPeriod + 1) * ranks * (ranks + 1) / 2);
}

}  // namespace

int64_t SizeBytes(const CollectiveCase& c, int ranks) {
  return c.count * kElementBytes * (HoldsAllRanks(c.kind) ? ranks : 1);
}

CollectiveCase CaseOfSize(TransferKind kind, int64_t bytes, int ranks, bool in_place) {
  const int64_t shares = HoldsAllRanks(kind) ? ranks : 1;
  return {kind, std::max<int64_t>(1, bytes / kElementBytes / shares), in_place};
}

CollectiveBuffers::CollectiveBuffers(const CollectiveCase& c, const RankInfo& info)
    : case_(c), info_(info) {
  const int64_t own_slice = info.rank * c.count;
  // In place the larger of the two buffers holds the other one.
  const bool in_send = c.in_place && c.kind == TransferKind::kReduceScatter;
  if (!c.in_place || in_send) send_.resize(static_cast<size_t>(SendCount()));
  if (!in_send) recv_.resize(static_cast<size_t>(RecvCount()));
  send_data_ = send_.data();
  recv_data_ = recv_.data();
  if (!c.in_place) return;
  if (in_send) {
    recv_data_ = send_data_ + own_slice;
  } else {
    send_data_ = recv_data_ + (c.kind == TransferKind::kAllGather ? own_slice : 0);
  }
}

void CollectiveBuffers::Fill() {
  std::fill(recv_.begin(), recv_.end(), kGarbage);
  for (int64_t i = 0; i < SendCount(); ++i) send_data_[i] = Input(info_.rank, i);
}

void CollectiveBuffers::Clear() {
  std::fill(send_.begin(), send_.end(), 0.0f);
  std::fill(recv_.begin(), recv_.end(), 0.0f);
}

Transfer CollectiveBuffers::MakeTransfer(uint64_t key, uint64_t sequence,
                                         int64_t timeout_ms) const {
  return {.kind = case_.kind,
          .send = send_data_,
          .recv = recv_data_,
          .count = case_.count,
          .key = key,
          .sequence = sequence,
          .timeout_ms = timeout_ms};
}

int64_t CollectiveBuffers::CountWrong(std::string* first) const {
  int64_t wrong = 0;
  for (int64_t i = 0; i < RecvCount(); ++i) {
    if (recv_data_[i] == Expected(i)) continue;
    if (++wrong > 1) continue;
    char text[128];
    std::snprintf(text, sizeof(text), "element %lld of rank %d is %g instead of %g",
                  static_cast<long long>(i), info_.rank, recv_data_[i], Expected(i));
    *first = text;
  }
  return wrong;
}

float CollectiveBuffers::Expected(int64_t index) const {
  switch (case_.kind) {
    case TransferKind::kAllGather:
      return Input(static_cast<int>(index / case_.count), index % case_.count);
    case TransferKind::kBroadcast:
      return Input(0, index);
    case TransferKind::kReduceScatter:
      return Sum(info_.world_size, info_.rank * case_.count + index);
    default:
      return Sum(info_.world_size, index);
  }
}

int64_t CollectiveBuffers::SendCount() const {
  return case_.kind == TransferKind::kReduceScatter ? case_.count * info_.world_size : case_.count;
}

int64_t CollectiveBuffers::RecvCount() const {
  return case_.kind == TransferKind::kAllGather ? case_.count * info_.world_size : case_.count;
}

}  // namespace engine::bench
