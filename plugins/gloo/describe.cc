#include "describe.h"

#include <cinttypes>
#include <cstdio>

namespace engine::gloo {
namespace {

constexpr uint8_t kKinds = static_cast<uint8_t>(TransferKind::kBarrier) + 1;
constexpr uint8_t kDTypes = static_cast<uint8_t>(DType::kFloat16) + 1;

}  // namespace

Text Describe(const Transfer& transfer) noexcept {
  Text text;
  if (transfer.kind == TransferKind::kBarrier) {
    std::snprintf(text.data, sizeof(text.data), "barrier (sequence %" PRIu64 ")",
                  transfer.sequence);
    return text;
  }
  double size = static_cast<double>(transfer.count) * static_cast<double>(SizeOf(transfer.dtype));
  const char* const units[] = {"B", "kB", "MB", "GB"};
  int unit = 0;
  for (; size >= 1000 && unit < 3; ++unit) size /= 1000;
  std::snprintf(text.data, sizeof(text.data), "%s of %.3g %s (sequence %" PRIu64 ")",
                Name(transfer.kind), size, units[unit], transfer.sequence);
  return text;
}

Text Describe(const TransferHeader& header) noexcept {
  Text text;
  if (header.magic != TransferHeader().magic || header.kind >= kKinds || header.dtype >= kDTypes) {
    std::snprintf(text.data, sizeof(text.data), "something that is no transfer");
    return text;
  }
  std::snprintf(text.data, sizeof(text.data), "%s of %" PRId64 " %s (sequence %" PRIu64 ")",
                Name(static_cast<TransferKind>(header.kind)), header.count,
                Name(static_cast<DType>(header.dtype)), header.sequence);
  return text;
}

}  // namespace engine::gloo
