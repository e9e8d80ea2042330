#include "describe.h"

#include <cinttypes>
#include <cstdio>

#include "work.h"
#include "worker.h"

namespace engine::zmq_ps {

Text Describe(const SliceSpec& spec, uint64_t sequence) noexcept {
  constexpr const char* kReductions[] = {"sum", "max", "min"};
  Text text;
  const char* const kind = Name(spec.operation);
  switch (spec.operation) {
    case Operation::kBarrier:
    case Operation::kLastStep:
      std::snprintf(text.data, sizeof(text.data), "%s (sequence %" PRIu64 ")", kind, sequence);
      break;
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
      std::snprintf(text.data, sizeof(text.data), "%s of %" PRIu64 " %s (%s, sequence %" PRIu64 ")",
                    kind, spec.total, Name(spec.dtype),
                    kReductions[static_cast<int>(spec.reduction)], sequence);
      break;
    case Operation::kBroadcast:
      std::snprintf(text.data, sizeof(text.data),
                    "%s of %" PRIu64 " %s (root %" PRIu32 ", sequence %" PRIu64 ")", kind,
                    spec.total, Name(spec.dtype), spec.root, sequence);
      break;
    case Operation::kAllGather:
      std::snprintf(text.data, sizeof(text.data), "%s of %" PRIu64 " %s (sequence %" PRIu64 ")",
                    kind, spec.total, Name(spec.dtype), sequence);
      break;
    case Operation::kPush:
    case Operation::kPull:
    case Operation::kRegister:
    case Operation::kStore:
    case Operation::kLoad:
      std::snprintf(text.data, sizeof(text.data), "%s of unit %016" PRIx64 " (%" PRIu64 " %s)",
                    kind, spec.tensor, spec.total, Name(spec.dtype));
      break;
  }
  return text;
}

namespace {

Text Describe(const Transfer& transfer, Operation operation) noexcept {
  const SliceSpec spec{.operation = operation,
                       .dtype = transfer.dtype,
                       .reduction = transfer.reduction,
                       .root = static_cast<uint32_t>(transfer.root),
                       .total = static_cast<uint64_t>(transfer.count),
                       .tensor = transfer.key};
  return Describe(spec, transfer.sequence);
}

}  // namespace

Text Describe(const Transfer& transfer) noexcept {
  return Describe(transfer, OperationOf(transfer.kind));
}

Text Describe(const PooledWork& work) noexcept {
  return Describe(work.transfer(), work.operation);
}

std::string Describe(const ServerAddress& address) {
  const char* const role = address.is_member ? "server " : "the parameter server of rank ";
  return role + std::to_string(address.rank) + " at " + address.endpoint;
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
