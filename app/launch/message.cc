#include "app/launch/message.h"

#include <algorithm>
#include <boost/endian/arithmetic.hpp>
#include <cstring>

namespace engine::launch {
namespace {

using boost::endian::little_int32_t;
using boost::endian::little_uint32_t;

// What a frame begins with: bytes without padding.
struct Head {
  little_uint32_t size;
  MessageKind kind;
  little_uint32_t id;
  little_int32_t rank;
  little_int32_t number;
  little_uint32_t key_size;
};
static_assert(sizeof(Head) == 21 && alignof(Head) == 1);
constexpr size_t kFixedBytes = sizeof(Head) - sizeof(Head::size);

}  // namespace

std::string Encode(const Message& message) {
  return EncodeHead(message, message.value.size()) + message.value;
}

std::string EncodeHead(const Message& message, size_t value_size) {
  const size_t key_size = message.key.size();
  ENGINE_CHECK(key_size <= kMaxKeyBytes && value_size <= kMaxValueBytes,
               "key of %zu and value of %zu bytes", key_size, value_size);
  const auto size = static_cast<uint32_t>(kFixedBytes + key_size + value_size);
  const Head head{size,         message.kind,   message.id,
                  message.rank, message.number, static_cast<uint32_t>(key_size)};
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + message.key;
}

Message EncodeStatus(MessageKind kind, const Status& status) {
  return {.kind = kind,
          .rank = status.rank(),
          .number = static_cast<int32_t>(status.code()),
          .value = std::string(status.message()).substr(0, kMaxKeyBytes)};
}

Status DecodeStatus(const Message& message) {
  bool known = message.number > static_cast<int32_t>(StatusCode::kOk) &&
               message.number <= static_cast<int32_t>(StatusCode::kInternal);
  StatusCode code = known ? static_cast<StatusCode>(message.number) : StatusCode::kInternal;
  return Status::Error(code, "%s", message.value.c_str()).WithRank(message.rank);
}

void MessageReader::Append(const char* data, size_t size) {
  if (begin_ > 0 && begin_ >= buffer_.size() / 2) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(data, size);
}

Result<bool> MessageReader::Next(Message* out) {
  const auto refuse = [](const char* what, size_t number) {
    return Status::Error(StatusCode::kBadData, "a frame with %s %zu", what, number);
  };
  const size_t available = buffer_.size() - begin_;
  if (available < sizeof(Head::size)) return false;
  const char* const frame = buffer_.data() + begin_;
  Head head{};
  std::memcpy(&head, frame, std::min(available, sizeof(head)));
  if (head.size < kFixedBytes || head.size > kFixedBytes + kMaxKeyBytes + max_value_bytes_) {
    return refuse("the size", head.size);
  }
  if (available < sizeof(head)) return false;
  if (head.kind < MessageKind::kHello || head.kind > MessageKind::kRegroup) {
    return refuse("the kind", static_cast<size_t>(head.kind));
  }
  const size_t rest = head.size - kFixedBytes;
  if (head.key_size > kMaxKeyBytes || head.key_size > rest ||
      rest - head.key_size > max_value_bytes_) {
    return refuse("a key of the size", head.key_size);
  }
  if (available < sizeof(head) + rest) return false;
  const char* const key = frame + sizeof(head);
  *out = {.kind = head.kind,
          .id = head.id,
          .rank = head.rank,
          .number = head.number,
          .key = std::string(key, head.key_size),
          .value = std::string(key + head.key_size, key + rest)};
  begin_ += sizeof(head) + rest;
  return true;
}

}  // namespace engine::launch
