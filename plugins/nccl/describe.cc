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

double BytesOf(const Transfer& transfer) noexcept {
  return static_cast<double>(transfer.count) * static_cast<double>(SizeOf(transfer.dtype));
}

// "1.2 MB"
Text SizeText(double bytes) noexcept {
  const char* const units[] = {"B", "kB", "MB", "GB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 3; ++unit) bytes /= 1000;
  Text text;
  std::snprintf(text.data, sizeof(text.data), "%.3g %s", bytes, units[unit]);
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
  const Text size = SizeText(BytesOf(transfer));
  std::snprintf(text.data, sizeof(text.data), "%s of %.16s %.64s", Name(transfer.kind),
                size.c_str(), position.c_str());
  return text;
}

Text Describe(std::span<const Transfer> transfers) noexcept {
  if (transfers.size() == 1) return Describe(transfers.front());
  double bytes = 0;
  for (const Transfer& transfer : transfers) bytes += BytesOf(transfer);
  const Text size = SizeText(bytes), position = Position(transfers.front());
  Text text;
  std::snprintf(text.data, sizeof(text.data), "group of %zu transfers of %.16s in all %.64s",
                transfers.size(), size.c_str(), position.c_str());
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
