// Transfers in words, for errors, and what the ranks must agree on before they move bytes.
#pragma once

#include <cinttypes>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

#include "engine/communicator.h"
#include "engine/status.h"

namespace engine::kit {

// Of one rank's part: see TransferKind. None of a barrier.
inline size_t SizeBytes(const Transfer& transfer) noexcept {
  if (transfer.kind == TransferKind::kBarrier) return 0;
  return static_cast<size_t>(transfer.count) * SizeOf(transfer.dtype);
}

// A sentence's worth of text without allocation.
struct Text {
  char data[160] = {};
  const char* c_str() const noexcept { return data; }
};

__attribute__((format(printf, 1, 2))) inline Text Format(const char* format, ...) noexcept {
  Text text;
  va_list args;
  va_start(args, format);
  std::vsnprintf(text.data, sizeof(text.data), format, args);
  va_end(args);
  return text;
}

// "bucket 3, sequence 17", "sequence 17"
inline Text Position(uint32_t bucket, uint64_t sequence) noexcept {
  if (bucket == Transfer().bucket) return Format("sequence %" PRIu64, sequence);
  return Format("bucket %" PRIu32 ", sequence %" PRIu64, bucket, sequence);
}

// "1.2 MB"
inline Text SizeText(double bytes) noexcept {
  const char* const units[] = {"B", "kB", "MB", "GB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 3; ++unit) bytes /= 1000;
  return Format("%.3g %s", bytes, units[unit]);
}

// "all-reduce of 1.2 MB (bucket 3, sequence 17)", "barrier (sequence 3)"; of several "group of 3
// transfers of 5.2 MB in all (bucket 3, sequence 17)", with the position of the first.
inline Text Describe(Array<const Transfer> transfers) noexcept {
  const Transfer& first = transfers.front();
  const Text position = Position(first.bucket, first.sequence);
  if (first.kind == TransferKind::kBarrier) return Format("barrier (%.64s)", position.c_str());
  double bytes = 0;
  for (const Transfer& one : transfers) bytes += static_cast<double>(SizeBytes(one));
  const Text size = SizeText(bytes);
  if (transfers.size() == 1) {
    return Format("%s of %.16s (%.64s)", Name(first.kind), size.c_str(), position.c_str());
  }
  return Format("group of %zu transfers of %.16s in all (%.64s)", transfers.size(), size.c_str(),
                position.c_str());
}

inline Text Describe(const Transfer& transfer) noexcept {
  return Describe(std::span(&transfer, 1));
}

// What a transfer is, and must be on every rank: plain bytes in host order, to be sent ahead of it
// or put where peers see it. Those of a peer may hold anything.
struct TransferId {
  uint8_t kind = 0;
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  uint8_t own = 0;  // for the implementation; not compared
  int32_t root = 0;
  uint64_t sequence = 0;
  uint64_t key = 0;
  int64_t count = 0;
};
static_assert(sizeof(TransferId) == 32);

inline TransferId IdOf(const Transfer& transfer) noexcept {
  return {.kind = static_cast<uint8_t>(transfer.kind),
          .dtype = static_cast<uint8_t>(transfer.dtype),
          .reduction = static_cast<uint8_t>(transfer.reduction),
          .root = transfer.root,
          .sequence = transfer.sequence,
          .key = transfer.key,
          .count = transfer.count};
}

inline bool Agree(const TransferId& a, const TransferId& b) noexcept {
  return a.kind == b.kind && a.dtype == b.dtype && a.reduction == b.reduction && a.root == b.root &&
         a.sequence == b.sequence && a.key == b.key && a.count == b.count;
}

// "all-reduce of 300000 float32 (bucket 3, sequence 17)"; says so when `id` is none that IdOf makes.
inline Text Describe(const TransferId& id, uint32_t bucket = Transfer().bucket) noexcept {
  if (id.kind > static_cast<uint8_t>(TransferKind::kPull) ||
      id.dtype > static_cast<uint8_t>(DType::kFloat16)) {
    return Format("something that is no transfer");
  }
  const auto kind = static_cast<TransferKind>(id.kind);
  const Text position = Position(bucket, id.sequence);
  if (kind == TransferKind::kBarrier) return Format("barrier (%.64s)", position.c_str());
  return Format("%s of %" PRId64 " %s (%.64s)", Name(kind), id.count,
                Name(static_cast<DType>(id.dtype)), position.c_str());
}

// kInvalidArgument blames `rank`, which submitted `theirs` where this one submitted `own`. What
// Describe does not show is said, too: "... with another key".
inline Status Disagreement(const TransferId& own, const TransferId& theirs, int32_t rank,
                           uint32_t their_bucket = Transfer().bucket) noexcept {
  const char* const hidden = own.key != theirs.key               ? " with another key"
                             : own.reduction != theirs.reduction ? " with another reduction"
                             : own.root != theirs.root           ? " with another root"
                                                                 : "";
  return Status::Error(StatusCode::kInvalidArgument,
                       "rank %d submitted %s%s instead: all ranks must submit the same transfers "
                       "in the same order",
                       rank, Describe(theirs, their_bucket).c_str(), hidden)
      .WithRank(rank);
}

}  // namespace engine::kit
