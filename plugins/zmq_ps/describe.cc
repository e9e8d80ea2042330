#include "describe.h"

#include <cinttypes>

namespace engine::zmq_ps {

Text Describe(const Header& request) noexcept {
  const SliceSpec& spec = request.spec;
  constexpr const char* kReductions[] = {"sum, ", "max, ", "min, "};
  const char* const kind = Name(spec.operation);
  const bool reduces =
      spec.operation == Operation::kAllReduce || spec.operation == Operation::kReduceScatter;
  const char* const reduction = reduces ? kReductions[static_cast<int>(spec.reduction)] : "";
  if (spec.operation == Operation::kBarrier || spec.operation == Operation::kLastStep) {
    return kit::Format("%s (sequence %" PRIu64 ")", kind, request.sequence);
  }
  if (IsServed(spec.operation)) {
    return kit::Format("%s of bucket %016" PRIx64 " (%" PRIu64 " %s)", kind, request.key,
                       spec.total, Name(spec.dtype));
  }
  return kit::Format("%s of %" PRIu64 " %s (%sroot %" PRIu32 ", sequence %" PRIu64 ")", kind,
                     spec.total, Name(spec.dtype), reduction, spec.root, request.sequence);
}

Text Describe(const Transfer& transfer, Operation operation) noexcept {
  return Describe(Header{.key = transfer.key,
                         .sequence = transfer.sequence,
                         .spec = {.operation = operation,
                                  .dtype = transfer.dtype,
                                  .reduction = transfer.reduction,
                                  .root = static_cast<uint32_t>(transfer.root),
                                  .total = static_cast<uint64_t>(transfer.count)}});
}

std::string List(const char* what, const std::vector<uint32_t>& numbers) {
  std::string list = std::string(what) + (numbers.size() == 1 ? " " : "s ");
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) list += i + 1 == numbers.size() ? " and " : ", ";
    list += std::to_string(numbers[i]);
  }
  return list;
}

Status Blame(uint32_t worker, const char* format, ...) noexcept {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  return Status::Error(StatusCode::kInvalidArgument, "%s", text)
      .WithRank(static_cast<int32_t>(worker));
}

}  // namespace engine::zmq_ps
