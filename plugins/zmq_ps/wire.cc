#include "wire.h"

#include <wire.pb.h>

#include <algorithm>
#include <cmath>

#include "engine/host.h"

namespace engine::zmq_ps {
namespace {

constexpr auto kLastKind = static_cast<uint32_t>(MessageKind::kLeave);
constexpr auto kLastOperation = static_cast<uint32_t>(Operation::kLastStep);
constexpr auto kLastDType = static_cast<uint32_t>(DType::kFloat16);
constexpr auto kLastReduction = static_cast<uint32_t>(Reduction::kMin);
constexpr auto kLastCode = static_cast<uint32_t>(StatusCode::kInternal);
constexpr uint64_t kMaxTimeoutMs = uint64_t{366} * 24 * 3600 * 1000;

void PutSlice(const Header& header, wire::Header* out) {
  const SliceSpec& spec = header.spec;
  out->set_key(header.key);
  out->set_round(header.round);
  out->set_slice(header.slice);
  out->set_slices(spec.slices);
  out->set_offset(spec.offset);
  out->set_count(spec.count);
  out->set_total(spec.total);
  out->set_tensor(spec.tensor);
  out->set_operation(static_cast<uint32_t>(spec.operation));
  out->set_dtype(static_cast<uint32_t>(spec.dtype));
  out->set_reduction(static_cast<uint32_t>(spec.reduction));
  out->set_root(spec.root);
  out->set_owner(spec.owner);
  out->set_priority(header.priority);
  out->set_timeout_ms(static_cast<uint64_t>(std::max<int64_t>(header.timeout_ms, 0)));
  out->set_sequence(header.sequence);
}

void PutServed(const ServedFields& served, wire::Header* out) {
  out->set_step(served.step);
  out->set_learning_rate(served.learning_rate);
  out->set_weight(served.weight);
  out->set_state(static_cast<uint32_t>(served.state + 1));
  out->set_row(served.row);
  out->set_digest(served.digest);
  out->set_rows(served.sparse ? served.rows + 1 : 0);
}

const char* TakeServed(const wire::Header& in, ServedFields* out) {
  if (in.step() > kMaxStep) return "step out of range";
  if (!std::isfinite(in.learning_rate())) return "learning rate is no number";
  if (!std::isfinite(in.weight()) || in.weight() < 0) return "weight is no number of samples";
  if (in.state() > kMaxOptimizerStates) return "state of an optimizer out of range";
  if (in.row() > in.total()) return "row is longer than the unit";
  if (in.rows() > in.count() + 1) return "more rows than elements";
  *out = {.step = in.step(),
          .learning_rate = in.learning_rate(),
          .weight = in.weight(),
          .state = static_cast<int32_t>(in.state()) - 1,
          .row = in.row(),
          .digest = in.digest(),
          .sparse = in.rows() > 0,
          .rows = in.rows() > 0 ? in.rows() - 1 : 0};
  return nullptr;
}

const char* TakeSlice(const wire::Header& in, Header* out) {
  if (in.operation() > kLastOperation) return "unknown operation";
  if (in.dtype() > kLastDType) return "unknown dtype";
  if (in.reduction() > kLastReduction) return "unknown reduction";
  if (in.root() >= in.world_size() || in.owner() >= in.world_size()) return "root out of range";
  if (in.slices() == 0 || in.slices() > kMaxSlices) return "number of slices out of range";
  if (in.slice() >= in.slices()) return "slice out of range";
  if (in.total() > kMaxElements) return "too many elements";
  if (in.offset() > kMaxElements * kMaxWorkers || in.count() > in.total()) {
    return "slice out of bounds";
  }
  const auto operation = static_cast<Operation>(in.operation());
  const bool has_parts =
      operation == Operation::kReduceScatter || operation == Operation::kAllGather;
  if (in.offset() + in.count() > in.total() * (has_parts ? in.world_size() : 1)) {
    return "slice out of bounds";
  }
  if (in.request() == 0 || in.round() == 0) return "request without a number";
  if (in.timeout_ms() > kMaxTimeoutMs) return "timeout out of range";
  if (IsServed(operation)) {
    if (in.key() == 0 && operation != Operation::kLastStep) return "parameters without a key";
    if (in.dtype() != static_cast<uint32_t>(DType::kFloat32)) return "parameters of another dtype";
    if (const char* const objection = TakeServed(in, &out->served)) return objection;
  }
  out->key = in.key();
  out->round = in.round();
  out->slice = in.slice();
  out->spec = {.operation = operation,
               .dtype = static_cast<DType>(in.dtype()),
               .reduction = static_cast<Reduction>(in.reduction()),
               .root = in.root(),
               .owner = in.owner(),
               .slices = in.slices(),
               .offset = in.offset(),
               .count = in.count(),
               .total = in.total(),
               .tensor = in.tensor()};
  out->priority = in.priority();
  out->timeout_ms = static_cast<int64_t>(in.timeout_ms());
  out->sequence = in.sequence();
  return nullptr;
}

const char* TakeStatus(const wire::Header& in, Header* out) {
  if (in.code() == 0 || in.code() > kLastCode) return "unknown status";
  constexpr auto kMembers = static_cast<int32_t>(kMaxWorkers);
  if (in.blamed() < BlameServer(kMembers) || in.blamed() >= kMembers) {
    return "blamed member out of range";
  }
  const std::string text = in.message().substr(0, kMaxMessageText);
  out->status =
      Status::Error(static_cast<StatusCode>(in.code()), "%s", text.c_str()).WithRank(in.blamed());
  return nullptr;
}

}  // namespace

const char* Name(Operation operation) noexcept {
  switch (operation) {
    case Operation::kRegister:
      return "registration";
    case Operation::kStore:
      return "store";
    case Operation::kLoad:
      return "load";
    case Operation::kLastStep:
      return "question for the last step";
    default:
      return Name(static_cast<TransferKind>(operation));
  }
}

void Encode(const Header& header, std::string* out) {
  wire::Header message;
  message.set_version(kWireVersion);
  message.set_kind(static_cast<uint32_t>(header.kind));
  message.set_worker(header.worker);
  message.set_world_size(header.world_size);
  message.set_incarnation(header.incarnation);
  message.set_request(header.request);
  if (header.kind == MessageKind::kPush || header.kind == MessageKind::kAnswer) {
    PutSlice(header, &message);
    if (IsServed(header.spec.operation)) PutServed(header.served, &message);
  }
  if (header.kind == MessageKind::kWelcome) message.set_round(header.round);
  for (const uint64_t request : header.requests) message.add_requests(request);
  if (!header.status.ok()) {
    message.set_code(static_cast<uint32_t>(header.status.code()));
    message.set_blamed(header.status.rank());
    message.set_message(std::string(header.status.message()).substr(0, kMaxMessageText));
  }
  message.SerializeToString(out);
}

const char* Decode(std::span<const uint8_t> bytes, Header* out) {
  if (bytes.size() > kMaxHeaderBytes) return "header is too long";
  wire::Header message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return "header is no protobuf of ours";
  }
  if (message.version() != kWireVersion) return "another version of the protocol";
  if (message.kind() == 0 || message.kind() > kLastKind) return "unknown kind of message";
  if (message.world_size() == 0 || message.world_size() > kMaxWorkers) {
    return "world size out of range";
  }
  if (message.worker() >= message.world_size()) return "worker out of range";
  if (message.incarnation() > kMaxIncarnation) return "incarnation out of range";
  if (static_cast<size_t>(message.requests_size()) > kMaxRequestsPerHeader) {
    return "too many requests";
  }
  out->kind = static_cast<MessageKind>(message.kind());
  out->worker = message.worker();
  out->world_size = message.world_size();
  out->incarnation = message.incarnation();
  out->request = message.request();
  out->round = message.round();
  out->requests.assign(message.requests().begin(), message.requests().end());
  if (out->kind == MessageKind::kPush || out->kind == MessageKind::kAnswer) {
    return TakeSlice(message, out);
  }
  if (out->kind == MessageKind::kRefusal || out->kind == MessageKind::kLeave) {
    return TakeStatus(message, out);
  }
  return nullptr;
}

bool Contributes(const SliceSpec& spec, uint32_t worker) noexcept {
  switch (spec.operation) {
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
      return true;
    case Operation::kAllGather:
    case Operation::kBroadcast:
      return worker == spec.owner;
    default:
      return false;
  }
}

bool Receives(const SliceSpec& spec, uint32_t worker) noexcept {
  switch (spec.operation) {
    case Operation::kAllReduce:
      return true;
    case Operation::kReduceScatter:
      return worker == spec.owner;
    case Operation::kAllGather:
    case Operation::kBroadcast:
      return worker != spec.owner;
    default:
      return false;
  }
}

}  // namespace engine::zmq_ps
