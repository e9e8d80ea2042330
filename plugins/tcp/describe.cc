#include "describe.h"

#include <cinttypes>
#include <cstdio>

namespace engine::tcp {
namespace {

constexpr uint8_t kKinds = static_cast<uint8_t>(TransferKind::kBarrier) + 1;
constexpr uint8_t kDTypes = static_cast<uint8_t>(DType::kFloat16) + 1;

// "(unit 3, sequence 17)"
Text Position(uint32_t unit, uint64_t sequence) noexcept {
  Text text;
  if (unit == Transfer().unit) {
    std::snprintf(text.data, sizeof(text.data), "(sequence %" PRIu64 ")", sequence);
  } else {
    std::snprintf(text.data, sizeof(text.data), "(unit %" PRIu32 ", sequence %" PRIu64 ")", unit,
                  sequence);
  }
  return text;
}

}  // namespace

Text Describe(const Transfer& transfer) noexcept {
  Text text;
  const Text position = Position(transfer.unit, transfer.sequence);
  if (transfer.kind == TransferKind::kBarrier) {
    std::snprintf(text.data, sizeof(text.data), "barrier %s", position.c_str());
    return text;
  }
  double size = static_cast<double>(transfer.count) * static_cast<double>(SizeOf(transfer.dtype));
  const char* const units[] = {"B", "kB", "MB", "GB"};
  int unit = 0;
  for (; size >= 1000 && unit < 3; ++unit) size /= 1000;
  std::snprintf(text.data, sizeof(text.data), "%s of %.3g %s %s", Name(transfer.kind), size,
                units[unit], position.c_str());
  return text;
}

Text Describe(const TransferHeader& header) noexcept {
  Text text;
  if (header.magic != TransferHeader().magic || header.kind >= kKinds || header.dtype >= kDTypes) {
    std::snprintf(text.data, sizeof(text.data), "something that is no transfer");
    return text;
  }
  std::snprintf(text.data, sizeof(text.data), "%s of %" PRId64 " %s %s",
                Name(static_cast<TransferKind>(header.kind)), header.count,
                Name(static_cast<DType>(header.dtype)),
                Position(header.unit, header.sequence).c_str());
  return text;
}

Text HiddenDifference(const TransferHeader& a, const TransferHeader& b) noexcept {
  const char* const what = a.key != b.key               ? "key"
                           : a.reduction != b.reduction ? "reduction"
                           : a.root != b.root           ? "root"
                                                        : nullptr;
  Text text;
  if (what) std::snprintf(text.data, sizeof(text.data), " with another %s", what);
  return text;
}

}  // namespace engine::tcp
