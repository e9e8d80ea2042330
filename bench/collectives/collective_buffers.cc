#include "bench/collectives/collective_buffers.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "kit/float16.h"

namespace engine::bench {
namespace {

constexpr int64_t kPeriod = 251;
constexpr std::byte kGarbage{0xa5};

bool HoldsAllRanks(TransferKind kind) {
  return kind == TransferKind::kReduceScatter || kind == TransferKind::kAllGather;
}

// The whole numbers from 0 up to this one are exact.
int64_t LargestExact(DType dtype) {
  constexpr int64_t kLargest[] = {1 << 24, 1 << 24, 255, 256, 2048};  // by DType
  return kLargest[static_cast<int>(dtype)];
}

// The bytes of the element `value`, lowest first.
uint32_t Encode(DType dtype, float value) {
  if (dtype == DType::kBFloat16) return kit::ToBFloat16(value);
  if (dtype == DType::kFloat16) return kit::ToFloat16(value);
  return dtype == DType::kFloat32 ? kit::BitsOf(value) : static_cast<uint32_t>(value);
}

double Decode(DType dtype, uint32_t element) {
  if (dtype == DType::kBFloat16) return kit::FromBFloat16(static_cast<uint16_t>(element));
  if (dtype == DType::kFloat16) return kit::FromFloat16(static_cast<uint16_t>(element));
  return dtype == DType::kFloat32 ? kit::FloatOf(element) : static_cast<int32_t>(element);
}

}  // namespace

int64_t SizeBytes(const CollectiveCase& c, int ranks) {
  return c.count * static_cast<int64_t>(SizeOf(c.dtype)) * (HoldsAllRanks(c.kind) ? ranks : 1);
}

CollectiveCase CaseOfSize(TransferKind kind, int64_t bytes, int ranks, bool in_place, DType dtype) {
  const int64_t shares = HoldsAllRanks(kind) ? ranks : 1;
  const auto element = static_cast<int64_t>(SizeOf(dtype));
  return {kind, std::max<int64_t>(1, bytes / element / shares), in_place, dtype};
}

void* BufferMemory::do_allocate(size_t bytes, size_t alignment) {
  if (lent_ == nullptr) return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  void* data = nullptr;
  if (!lent_->Allocate(bytes, &data).ok()) throw std::bad_alloc();
  return data;
}

void BufferMemory::do_deallocate(void* data, size_t bytes, size_t alignment) {
  if (lent_ != nullptr) return lent_->Free(data);
  std::pmr::new_delete_resource()->deallocate(data, bytes, alignment);
}

CollectiveBuffers::CollectiveBuffers(const CollectiveCase& c, const RankInfo& info,
                                     SharedMemory* lent)
    : case_(c),
      info_(info),
      bytes_(static_cast<int64_t>(SizeOf(c.dtype))),
      memory_(lent),
      send_(&memory_),
      recv_(&memory_) {
  for (int64_t i = 0; i < kPeriod; ++i) {
    float& sum = sums_.emplace_back(0.0f);
    for (int rank = 0; rank < info.world_size; ++rank) sum += Input(rank, i);
  }
  const int64_t own_slice = info.rank * c.count * bytes_;
  // In place the larger of the two buffers holds the other one.
  const bool in_send = c.in_place && c.kind == TransferKind::kReduceScatter;
  if (!c.in_place || in_send) send_.resize(static_cast<size_t>(SendCount() * bytes_));
  if (!in_send) recv_.resize(static_cast<size_t>(RecvCount() * bytes_));
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
  // A period by its definition, the rest as copies of it.
  const int64_t period = std::min(SendCount(), kPeriod) * bytes_, all = SendCount() * bytes_;
  for (int64_t i = 0; i * bytes_ < period; ++i) {
    const uint32_t element = Encode(case_.dtype, Input(info_.rank, i));
    std::memcpy(send_data_ + i * bytes_, &element, static_cast<size_t>(bytes_));
  }
  for (int64_t done = period; done < all; done += period) {
    std::memcpy(send_data_ + done, send_data_, static_cast<size_t>(std::min(period, all - done)));
  }
}

void CollectiveBuffers::Clear() {
  std::fill(send_.begin(), send_.end(), std::byte{0});
  std::fill(recv_.begin(), recv_.end(), std::byte{0});
}

Transfer CollectiveBuffers::MakeTransfer(uint64_t key, uint64_t sequence,
                                         int64_t timeout_ms) const {
  return {.kind = case_.kind,
          .dtype = case_.dtype,
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
    const uint32_t expected = Encode(case_.dtype, Expected(i));
    uint32_t found = 0;
    std::memcpy(&found, recv_data_ + i * bytes_, static_cast<size_t>(bytes_));
    if (found == expected) continue;
    if (++wrong > 1) continue;
    char text[128];
    std::snprintf(text, sizeof(text), "element %lld of rank %d is %g instead of %g",
                  static_cast<long long>(i), info_.rank, Decode(case_.dtype, found), Expected(i));
    *first = text;
  }
  return wrong;
}

// Sums over all ranks are exact: at most 251 * 255 each for float32, less for smaller formats.
float CollectiveBuffers::Input(int rank, int64_t index) const {
  const int64_t values = LargestExact(case_.dtype) / info_.world_size + 1;
  return static_cast<float>((index % kPeriod + 1) * (rank + 1) % values);
}

float CollectiveBuffers::Expected(int64_t index) const {
  switch (case_.kind) {
    case TransferKind::kAllGather:
      return Input(static_cast<int>(index / case_.count), index % case_.count);
    case TransferKind::kBroadcast:
      return Input(0, index);
    case TransferKind::kReduceScatter:
      return sums_[static_cast<size_t>((info_.rank * case_.count + index) % kPeriod)];
    default:
      return sums_[static_cast<size_t>(index % kPeriod)];
  }
}

int64_t CollectiveBuffers::SendCount() const {
  return case_.kind == TransferKind::kReduceScatter ? case_.count * info_.world_size : case_.count;
}

int64_t CollectiveBuffers::RecvCount() const {
  return case_.kind == TransferKind::kAllGather ? case_.count * info_.world_size : case_.count;
}

}  // namespace engine::bench
