// Headers of the protocol: a plain struct, and its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/optimizer.h"
#include "engine/status.h"

namespace engine::zmq_ps {

enum class MessageKind : uint32_t {
  kHello = 1,    // worker: I am here
  kWelcome = 2,  // server: so am I; `round` is the last one without a key that was begun
  kPush = 3,     // worker: my part of a slice, and what I want of it
  kAnswer = 4,   // server: the slice is complete; its data, if the worker wants any
  kAck = 5,      // worker: these answers have arrived
  kProbe = 6,    // either: nothing was heard of these requests, what about them?
  kMissing = 7,  // server, on a probe: these pushes have not arrived
  kRefusal = 8,  // server: this request fails, and why; request 0: everything fails
  kLeave = 9,    // worker: nothing more comes from me, and why; kAborted: it is done
};

constexpr uint32_t kWireVersion = 1;
constexpr size_t kMaxHeaderBytes = 4096;
constexpr size_t kMaxRequestsPerHeader = 256;
constexpr size_t kMaxMessageText = 1024;
constexpr uint32_t kMaxWorkers = 4096;
constexpr uint32_t kMaxSlices = 1u << 24;
constexpr uint64_t kMaxElements = uint64_t{1} << 40;
constexpr uint64_t kMaxStep = uint64_t{1} << 48;
constexpr uint32_t kMaxIncarnation = 1u << 20;

// What a request asks for: a transfer, under the same number, or what else a ParameterClient does.
enum class Operation : uint32_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kPush = 5,
  kPull = 6,
  kRegister = 7,  // data: ServedSpan, ... of the slice
  kStore = 8,
  kLoad = 9,
  kLastStep = 10,  // of no slice; the answer has the step
};

constexpr Operation OperationOf(TransferKind kind) noexcept {
  return static_cast<Operation>(kind);
}
const char* Name(Operation operation) noexcept;

// Whether servers keep what it is about: its requests do not meet those of other ranks.
constexpr bool IsServed(Operation operation) noexcept {
  return operation >= Operation::kPush;
}

// Of an IsServed request.
struct ServedFields {
  uint64_t step = 0;        // kPush, kPull, kLoad; and of the answer to kLastStep
  float learning_rate = 0;  // kPush
  float weight = 0;         // kPush
  int32_t state = -1;       // kStore, kLoad: of the optimizer; -1: values
  uint64_t row = 0;         // kRegister: elements; 0: the unit has no rows
  uint64_t digest = 0;      // kRegister, kLastStep: of all units of the rank
  // kPush, kPull: only some rows of the slice; their numbers are a frame behind the data's.
  bool sparse = false;
  uint32_t rows = 0;  // sparse: how many

  bool operator==(const ServedFields&) const = default;
};

// What all pushes of one slice must agree on.
struct SliceSpec {
  Operation operation = Operation::kAllReduce;
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  uint32_t root = 0;
  uint32_t owner = 0;
  uint32_t slices = 1;
  uint64_t offset = 0;
  uint64_t count = 0;
  uint64_t total = 0;
  uint64_t tensor = 0;  // Transfer::key

  bool operator==(const SliceSpec&) const = default;
  size_t bytes() const noexcept { return static_cast<size_t>(count) * SizeOf(dtype); }
};

struct Header {
  MessageKind kind = MessageKind::kHello;
  uint32_t worker = 0;
  uint32_t world_size = 1;
  uint32_t incarnation = 0;
  uint64_t request = 0;
  uint64_t key = 0;
  uint64_t round = 0;
  uint32_t slice = 0;
  SliceSpec spec;
  int32_t priority = 0;
  int64_t timeout_ms = 0;
  uint64_t sequence = 0;
  ServedFields served;
  std::vector<uint64_t> requests;
  Status status;
};

// Appends nothing and allocates once: *out is replaced.
void Encode(const Header& header, std::string* out);

// Null, or why `bytes` is no header; *out is then undefined. Every number of a header that is
// accepted is within the bounds above, and offset + count is within the transfer. Nothing larger
// than `bytes` is allocated. [any-thread]
const char* Decode(std::span<const uint8_t> bytes, Header* out);

// Whether `worker` brings data of a slice of a collective, and whether the answer to it holds data.
bool Contributes(const SliceSpec& spec, uint32_t worker) noexcept;
bool Receives(const SliceSpec& spec, uint32_t worker) noexcept;

}  // namespace engine::zmq_ps
