// The messages between the members of a run (ranks and servers of parameters, see member.h) and the
// store of the run.
//
//   stream   = frame*                        one per direction of a connection
//   frame    = size kind id rank number key_size key value
//   size     = u32                           bytes that follow it: 17 + |key| + |value|
//   kind     = u8                            MessageKind
//   id       = u32                           pairs a reply with its request
//   rank     = i32
//   number   = i32                           meaning by kind
//   key_size = u32                           |key| <= 4 KiB
//   key      = byte*
//   value    = byte*                         what is left of the frame; |value| <= 64 MiB
//
// Integers are little-endian. Fields that a kind does not name are zero or empty. docs/launch.md
// shows who says what when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/status.h"

namespace engine::launch {

inline constexpr uint32_t kProtocolVersion = 5;
inline constexpr size_t kReadBytes = 64 << 10;  // taken from a connection at once
inline constexpr uint32_t kMaxKeyBytes = 4096;
inline constexpr uint32_t kMaxValueBytes = 64u << 20;
enum class MessageKind : uint8_t {
  // member -> store: id = version, rank = the member, number = world size or, of a server, 0 for
  // "unknown", key = job or, of a server, nothing; again after kRegroup, when it has ended its work
  kHello = 1,
  // store -> member: all are here, or here again; number = world size, id = servers, rank = 1 if on one
  // host; value = once ranks were lost for good, the others in the order of their new numbers
  kWelcome = 2,
  kRefused = 3,  // store -> member: value = why; the store closes
  kSet = 4,      // member -> store: id, key, value
  kReply = 5,    // store -> member: id; number = 1 if a key of kHas exists; value of a kGet
  kGet = 6,      // member -> store: id, key; answered when the key exists
  kCancel = 7,   // member -> store: id and key of a kGet that nobody waits for any more
  kHas = 8,      // member -> store: id, key
  kFail = 9,    // member -> store: number = StatusCode, rank = whom to blame or -1, value = message
  kAbort = 10,  // store -> member: the run is over; fields as in kFail
  // both ways: number = the signal by which the user asked to stop; id = 1 of a member that gives up
  // instead of finishing a step, since the run had not started
  kStop = 11,
  kBye = 12,        // member -> store: the last message of a member; the store closes
  kPost = 13,       // rank -> store: value; store -> every other rank: rank = the sender, value
  kChallenge = 14,  // store -> member that said kHello: key = challenge (see server_key.h)
  kProof = 15,      // member -> store and back: key = proof
  // store -> member that has joined: number = ms of silence after which either gives up the other;
  // and back, nothing
  kPing = 16,
  kRegroup = 17,  // store -> member: a rank is lost and the run goes on; fields as in kFail
};

struct Message {
  MessageKind kind = MessageKind::kBye;
  uint32_t id = 0;
  int32_t rank = -1;
  int32_t number = 0;
  std::string key;
  std::string value;
};

std::string Encode(const Message& message);
// The frame of `message` with a value of `value_size` bytes, without that value.
std::string EncodeHead(const Message& message, size_t value_size);

// A Status as the fields of kFail or kAbort, and back. An unknown code reads as kInternal.
Message EncodeStatus(MessageKind kind, const Status& status);
Status DecodeStatus(const Message& message);

// Cuts a byte stream into messages. Memory grows with the bytes that arrived, never with a size
// that a peer only claims.
class MessageReader {
 public:
  // The largest value accepted from now on. A server keeps it small until a peer has said kHello.
  void set_max_value_bytes(uint32_t bytes) { max_value_bytes_ = bytes; }
  void Append(const char* data, size_t size);
  // True with *out set; false when more bytes are needed; kBadData when this is not our protocol,
  // after which the stream is useless.
  Result<bool> Next(Message* out);

 private:
  std::string buffer_;
  size_t begin_ = 0;  // of the bytes in buffer_ that are not consumed
  uint32_t max_value_bytes_ = kMaxValueBytes;
};

}  // namespace engine::launch
