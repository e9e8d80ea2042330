#include "describe.h"

#include <cinttypes>
#include <cstdio>

namespace engine::zmq_ps {

Text Describe(const SliceSpec& spec, uint64_t sequence) noexcept {
  constexpr const char* kReductions[] = {"sum", "max", "min"};
  Text text;
  const char* const kind = Name(spec.transfer);
  switch (spec.transfer) {
    case TransferKind::kBarrier:
      std::snprintf(text.data, sizeof(text.data), "barrier (sequence %" PRIu64 ")", sequence);
      break;
    case TransferKind::kAllReduce:
    case TransferKind::kReduceScatter:
      std::snprintf(text.data, sizeof(text.data), "%s of %" PRIu64 " %s (%s, sequence %" PRIu64 ")",
                    kind, spec.total, Name(spec.dtype),
                    kReductions[static_cast<int>(spec.reduction)], sequence);
      break;
    case TransferKind::kBroadcast:
      std::snprintf(text.data, sizeof(text.data),
                    "%s of %" PRIu64 " %s (root %" PRIu32 ", sequence %" PRIu64 ")", kind,
                    spec.total, Name(spec.dtype), spec.root, sequence);
      break;
    case TransferKind::kAllGather:
    case TransferKind::kPush:
    case TransferKind::kPull:
      std::snprintf(text.data, sizeof(text.data), "%s of %" PRIu64 " %s (sequence %" PRIu64 ")",
                    kind, spec.total, Name(spec.dtype), sequence);
      break;
  }
  return text;
}

Text Describe(const Transfer& transfer) noexcept {
  const SliceSpec spec{.transfer = transfer.kind,
                       .dtype = transfer.dtype,
                       .reduction = transfer.reduction,
                       .root = static_cast<uint32_t>(transfer.root),
                       .total = static_cast<uint64_t>(transfer.count)};
  return Describe(spec, transfer.sequence);
}

std::string ListRanks(const std::vector<uint32_t>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) list += i + 1 == ranks.size() ? " and " : ", ";
    list += std::to_string(ranks[i]);
  }
  return list;
}

}  // namespace engine::zmq_ps
