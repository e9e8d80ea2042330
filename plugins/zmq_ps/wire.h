// The messages between ranks and servers.
//
//   message := header [body [rows]]                 frames; both ends are little-endian and run the same build
//   header  := the bytes of struct Header
//   body    := values of the slice                  PUSH and ANSWER, as the table in README.md says
//            | ServedSpan ...                       PUSH of kRegister
//            | request(u64) ...                     ACK
//            | text                                 of the status, REFUSAL and LEAVE
//   rows    := row(i32) ...                         ascending; which rows of the bucket the body holds, or is to hold
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>
#include <zmq.hpp>

#include "engine/communicator.h"
#include "engine/host.h"
#include "engine/status.h"
#include "kit/describe.h"

namespace engine::zmq_ps {

enum class MessageKind : uint32_t {
  kHello = 1,    // rank: I have a new connection; send again what I have not acknowledged
  kWelcome = 2,  // server: go on; `round` is the last one without a key that was begun
  kPush = 3,     // rank: a request, with what this rank contributes
  kAnswer = 4,   // server: the request is done, with what the rank receives
  kAck = 5,      // rank: these answers have arrived
  kRefusal = 6,  // server: the request failed; request 0: so does everything
  kLeave = 7,    // rank: nothing more comes from me, and why; kAborted: it is done
  kProbe = 8,    // rank: nothing has moved for `timeout_ms`; who is missing? REFUSAL, or WELCOME
};

// What a request asks for: a transfer, under the same number, or what else a ParameterClient does.
enum class Operation : uint32_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kPush = 5,
  kPull = 6,
  kRegister = 7,
  kStore = 8,
  kLoad = 9,
  kLastStep = 10,  // of no slice; the answer has the step
};

constexpr uint32_t kWireVersion = 3;
constexpr uint32_t kMaxWorkers = 4096;
constexpr uint32_t kMaxSlices = 1u << 24;
constexpr uint64_t kMaxElements = uint64_t{1} << 40;
constexpr uint64_t kMaxStep = uint64_t{1} << 48;
constexpr int64_t kMaxTimeoutMs = int64_t{365} * 24 * 3600 * 1000;
constexpr size_t kMaxListBytes = 4096;  // of acknowledgements, and of a status's text

constexpr Operation OperationOf(TransferKind kind) noexcept {
  return static_cast<Operation>(kind);
}
constexpr bool Reduces(Operation operation) noexcept {
  return operation <= Operation::kReduceScatter;
}
// Whether servers keep what it is about: its requests are matched with those of no other rank.
constexpr bool IsServed(Operation operation) noexcept {
  return operation >= Operation::kPush;
}
const char* Name(Operation operation) noexcept;

// What all pushes of one slice must agree on.
struct SliceSpec {
  Operation operation = Operation::kAllReduce;
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  uint32_t root = 0;   // of a broadcast
  uint32_t owner = 0;  // the rank that alone has the slice, or alone receives it
  uint32_t slices = 1;
  uint64_t offset = 0;  // elements
  uint64_t count = 0;
  uint64_t total = 0;  // Transfer::count

  bool operator==(const SliceSpec&) const = default;
  size_t bytes() const noexcept { return static_cast<size_t>(count) * SizeOf(dtype); }
};

// Of an IsServed request.
struct ServedFields {
  uint64_t step = 0;        // kPush, kPull, kLoad; and of the answer to kLastStep
  float learning_rate = 0;  // kPush
  float weight = 0;         // kPush
  uint64_t row = 0;         // kRegister: elements; 0: the bucket has no rows
  uint64_t digest = 0;      // kRegister, kLastStep: of all buckets of the rank
  int32_t state = -1;       // kStore, kLoad: of the optimizer; -1: values
  int32_t rows = -1;        // kPush, kPull: how many are in the frame `rows`; -1: the whole slice

  bool sparse() const noexcept { return rows >= 0; }
};

struct Header {
  uint32_t version = kWireVersion;
  MessageKind kind = MessageKind::kHello;
  uint32_t worker = 0;  // the rank that sends or receives it
  uint32_t world_size = 1;
  uint32_t incarnation = 0;  // of the rank: RankInfo::incarnation
  uint32_t slice = 0;        // position in the transfer
  uint64_t request = 0;      // numbered by the rank, from 1 for each server
  uint64_t key = 0;          // Transfer::key
  uint64_t round = 0;        // which transfer of this key it is, from 1
  uint64_t sequence = 0;     // Transfer::sequence, for messages to people
  int64_t timeout_ms = 0;    // kProbe
  int32_t priority = 0;
  StatusCode code = StatusCode::kOk;  // kRefusal, kLeave: a status, with its text in the body
  int32_t blamed = -1;
  uint32_t reserved = 0;
  SliceSpec spec;
  ServedFields served;
};
// No padding, whose bytes would be anybody's.
static_assert(sizeof(SliceSpec) == 48 && sizeof(ServedFields) == 40 && sizeof(Header) == 168);
static_assert(std::is_trivially_copyable_v<Header>);

// Up to three frames. Empty ones at the end are not sent.
struct Message {
  uint32_t peer = 0;    // worker; only of use to a server
  int descriptor = -1;  // of the connection it came by; -1: unknown
  ::zmq::message_t header;
  ::zmq::message_t body;
  ::zmq::message_t rows;
};

::zmq::message_t Encode(const Header& header);
// A message that carries a status: kRefusal, kLeave.
Message Compose(Header header, const Status& status);
// Of such a message.
Status StatusOf(const Header& header, const ::zmq::message_t& body);

// Null, or why `frame` is no header; *out is then undefined. Every number of a header that is
// accepted is within the bounds above, and the slice is within the transfer. What `served` holds is
// for the table to judge. [any-thread]
const char* Decode(const ::zmq::message_t& frame, Header* out);

// Whether `worker` brings data of a slice of a collective, and whether the answer to it holds data.
bool Contributes(const SliceSpec& spec, uint32_t worker) noexcept;
bool Receives(const SliceSpec& spec, uint32_t worker) noexcept;

// Requests and members in words, for errors.
using kit::Text;

// "all-reduce of 300000 float32 (sum, root 0, sequence 17)", "barrier (sequence 3)"
Text Describe(const Header& request) noexcept;
Text Describe(const Transfer& transfer, Operation operation) noexcept;

// "rank 2", "ranks 0, 2 and 3"
std::string List(const char* what, const std::vector<uint32_t>& numbers);

// kInvalidArgument that names `worker`.
__attribute__((format(printf, 2, 3))) Status Blame(uint32_t worker, const char* format,
                                                   ...) noexcept;

}  // namespace engine::zmq_ps
