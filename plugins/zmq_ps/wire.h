// Headers of the protocol: a plain struct, and its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/status.h"

namespace engine::zmq_ps {

enum class MessageKind : uint32_t {
  kHello = 1,    // worker: I am here
  kWelcome = 2,  // server: so am I
  kPush = 3,     // worker: my part of a slice, and what I want of it
  kAnswer = 4,   // server: the slice is complete; its data, if the worker wants any
  kAck = 5,      // worker: these answers have arrived
  kProbe = 6,    // either: nothing was heard of these requests, what about them?
  kMissing = 7,  // server, on a probe: these pushes have not arrived
  kRefusal = 8,  // server: this request fails, and why; request 0: everything fails
  kLeave = 9,    // worker: nothing more comes from me, and why
};

constexpr uint32_t kWireVersion = 1;
constexpr size_t kMaxHeaderBytes = 4096;
constexpr size_t kMaxRequestsPerHeader = 256;
constexpr size_t kMaxMessageText = 1024;
constexpr uint32_t kMaxWorkers = 4096;
constexpr uint32_t kMaxSlices = 1u << 24;
constexpr uint64_t kMaxElements = uint64_t{1} << 40;

// What all pushes of one slice must agree on.
struct SliceSpec {
  TransferKind transfer = TransferKind::kAllReduce;
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
  uint64_t request = 0;
  uint64_t key = 0;
  uint64_t round = 0;
  uint32_t slice = 0;
  SliceSpec spec;
  int32_t priority = 0;
  int64_t timeout_ms = 0;
  uint64_t sequence = 0;
  std::vector<uint64_t> requests;
  Status status;
};

// Appends nothing and allocates once: *out is replaced.
void Encode(const Header& header, std::string* out);

// Null, or why `bytes` is no header; *out is then undefined. Every number of a header that is
// accepted is within the bounds above, and offset + count is within the transfer. Nothing larger
// than `bytes` is allocated. [any-thread]
const char* Decode(std::span<const uint8_t> bytes, Header* out);

// Whether `worker` brings data of a slice, and whether the answer to it holds data.
bool Contributes(const SliceSpec& spec, uint32_t worker) noexcept;
bool Receives(const SliceSpec& spec, uint32_t worker) noexcept;

}  // namespace engine::zmq_ps
