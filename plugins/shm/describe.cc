#include "describe.h"

#include <cinttypes>
#include <cstdio>

namespace engine::shm {

Opening OpeningOf(const Transfer& transfer) noexcept {
  Opening opening{};
  opening.kind = static_cast<uint8_t>(transfer.kind);
  opening.dtype = static_cast<uint8_t>(transfer.dtype);
  opening.reduction = static_cast<uint8_t>(transfer.reduction);
  opening.sequence = transfer.sequence;
  opening.key = transfer.key;
  opening.count = transfer.count;
  opening.root = transfer.root;
  return opening;
}

bool Agree(const Opening& a, const Opening& b) noexcept {
  return a.kind == b.kind && a.dtype == b.dtype && a.reduction == b.reduction &&
         a.sequence == b.sequence && a.key == b.key && a.count == b.count && a.root == b.root;
}

Text Describe(const Opening& opening, uint32_t unit) noexcept {
  Text position;
  if (unit == Transfer().unit) {
    std::snprintf(position.data, sizeof(position.data), "(sequence %" PRIu64 ")", opening.sequence);
  } else {
    std::snprintf(position.data, sizeof(position.data), "(unit %" PRIu32 ", sequence %" PRIu64 ")",
                  unit, opening.sequence);
  }
  Text text;
  const auto kind = static_cast<TransferKind>(opening.kind);
  if (kind == TransferKind::kBarrier) {
    std::snprintf(text.data, sizeof(text.data), "barrier %s", position.c_str());
  } else {
    std::snprintf(text.data, sizeof(text.data), "%s of %" PRId64 " %s %s", Name(kind),
                  opening.count, Name(static_cast<DType>(opening.dtype)), position.c_str());
  }
  return text;
}

Text Describe(const Transfer& transfer) noexcept {
  return Describe(OpeningOf(transfer), transfer.unit);
}

Text HiddenDifference(const Opening& a, const Opening& b) noexcept {
  const char* const what = a.key != b.key               ? "key"
                           : a.reduction != b.reduction ? "reduction"
                           : a.root != b.root           ? "root"
                                                        : nullptr;
  Text text;
  if (what) std::snprintf(text.data, sizeof(text.data), " with another %s", what);
  return text;
}

}  // namespace engine::shm
