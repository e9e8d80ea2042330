#include "describe.h"

#include <cinttypes>
#include <cstdio>

namespace engine::nccl {
namespace {

// "(unit 3, sequence 17)"
Text Position(const Transfer& transfer) noexcept {
  Text text;
  if (transfer.unit == Transfer().unit) {
    std::snprintf(text.data, sizeof(text.data), "(sequence %" PRIu64 ")", transfer.sequence);
  } else {
    std::snprintf(text.data, sizeof(text.data), "(unit %" PRIu32 ", sequence %" PRIu64 ")",
                  transfer.unit, transfer.sequence);
  }
  return text;
}

}  // namespace

Text Describe(const Transfer& transfer) noexcept {
  Text text;
  const Text position = Position(transfer);
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

Text VersionText(int nccl_version) noexcept {
  // Up to 2.8 a version was 1000 * major + 100 * minor + patch.
  const int scale = nccl_version >= 10000 ? 10000 : 1000;
  Text text;
  std::snprintf(text.data, sizeof(text.data), "%d.%d.%d", nccl_version / scale,
                nccl_version % scale / 100, nccl_version % 100);
  return text;
}

}  // namespace engine::nccl
