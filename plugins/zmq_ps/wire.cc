// Headers come from ranks and servers that have proven their keys, but perhaps of another build or
// broken. So every number is checked once, here, before anything looks at it; what is about
// parameters is checked against the cell, which knows more (served_spec.cc).
#include "wire.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "kit/communicator.h"

namespace engine::zmq_ps {
namespace {

constexpr uint32_t kMaxIncarnation = 1u << 20;

// Whether one rank has what the others want.
constexpr bool PassesOn(Operation operation) noexcept {
  return operation == Operation::kAllGather || operation == Operation::kBroadcast;
}

// An offset that the count could overflow is refused first: the sum is below 2^53.
const char* CheckSlice(const Header& header) noexcept {
  const SliceSpec& spec = header.spec;
  if (!kit::InRange(spec.operation, Operation::kLastStep)) return "unknown operation";
  if (!kit::InRange(spec.dtype, DType::kFloat16)) return "unknown dtype";
  if (!kit::InRange(spec.reduction, Reduction::kMin)) return "unknown reduction";
  if (std::max(spec.root, spec.owner) >= header.world_size) return "root out of range";
  if (spec.slices > kMaxSlices || header.slice >= spec.slices) return "slice out of range";
  const bool has_parts =
      spec.operation == Operation::kReduceScatter || spec.operation == Operation::kAllGather;
  const uint64_t elements = spec.total * (has_parts ? header.world_size : 1);
  if (spec.total > kMaxElements || spec.offset > elements || spec.count > spec.total ||
      spec.offset + spec.count > elements) {
    return "slice out of bounds";
  }
  if (header.request == 0 || header.round == 0) return "request without a number";
  if (!IsServed(spec.operation)) return nullptr;
  if (header.key == 0 && spec.operation != Operation::kLastStep) return "parameters without a key";
  return spec.dtype == DType::kFloat32 ? nullptr : "parameters of another dtype";
}

}  // namespace

const char* Name(Operation operation) noexcept {
  constexpr const char* kServed[] = {"registration", "store", "load", "question for the last step"};
  if (operation < Operation::kRegister) return Name(static_cast<TransferKind>(operation));
  return kServed[static_cast<uint32_t>(operation) - static_cast<uint32_t>(Operation::kRegister)];
}

// Byte for byte: both ends run the same build, and the version says so.
::zmq::message_t Encode(const Header& header) {
  return {&header, sizeof(header)};
}

Message Compose(Header header, const Status& status) {
  header.code = status.code();
  header.blamed = status.rank();
  const std::string text = std::string(status.message()).substr(0, kMaxListBytes);
  return {.peer = header.worker,
          .header = Encode(header),
          .body = ::zmq::message_t(text.data(), text.size())};
}

Status StatusOf(const Header& header, const ::zmq::message_t& body) {
  const std::string text = body.to_string().substr(0, kMaxListBytes);
  return Status::Error(header.code, "%s", text.c_str()).WithRank(header.blamed);
}

// Copied before it is looked at: memory of a message is aligned to nothing.
const char* Decode(const ::zmq::message_t& frame, Header* out) {
  if (frame.size() != sizeof(Header)) return "a header of another size";
  std::memcpy(out, frame.data(), sizeof(Header));
  if (out->version != kWireVersion) return "another version of the protocol";
  if (out->kind < MessageKind::kHello || out->kind > MessageKind::kProbe) {
    return "unknown kind of message";
  }
  if (out->world_size == 0 || out->world_size > kMaxWorkers) return "world size out of range";
  if (out->worker >= out->world_size) return "rank out of range";
  if (out->incarnation > kMaxIncarnation) return "incarnation out of range";
  if (out->timeout_ms < 0 || out->timeout_ms > kMaxTimeoutMs) return "timeout out of range";
  if (out->kind == MessageKind::kPush || out->kind == MessageKind::kAnswer) return CheckSlice(*out);
  if (out->kind != MessageKind::kRefusal && out->kind != MessageKind::kLeave) return nullptr;
  if (out->code == StatusCode::kOk || !kit::InRange(out->code, StatusCode::kInternal)) {
    return "unknown code of a status";
  }
  const bool names_member =
      out->blamed >= ServerId(kMaxWorkers) && out->blamed < static_cast<int32_t>(kMaxWorkers);
  return names_member ? nullptr : "status blames nobody of this run";
}

bool Contributes(const SliceSpec& spec, uint32_t worker) noexcept {
  return Reduces(spec.operation) || (PassesOn(spec.operation) && worker == spec.owner);
}

bool Receives(const SliceSpec& spec, uint32_t worker) noexcept {
  if (PassesOn(spec.operation)) return worker != spec.owner;
  return spec.operation == Operation::kAllReduce ||
         (spec.operation == Operation::kReduceScatter && worker == spec.owner);
}

Text Describe(const Header& request) noexcept {
  const SliceSpec& spec = request.spec;
  constexpr const char* kReductions[] = {"sum, ", "max, ", "min, "};
  const char* const kind = Name(spec.operation);
  const char* const reduction =
      Reduces(spec.operation) ? kReductions[static_cast<int>(spec.reduction)] : "";
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
