#include "app/launch/message.h"

namespace engine::launch {
namespace {

constexpr size_t kSizeBytes = 4;
constexpr size_t kFixedBytes = 17;  // kind id rank number key_size

void PutU32(std::string* out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

uint32_t GetU32(const char* data) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(data[i]);
  return value;
}

}  // namespace

std::string Encode(const Message& message) {
  return EncodeHead(message, message.value.size()) + message.value;
}

std::string EncodeHead(const Message& message, size_t value_size) {
  ENGINE_CHECK(message.key.size() <= kMaxKeyBytes && value_size <= kMaxValueBytes,
               "key of %zu and value of %zu bytes", message.key.size(), value_size);
  const size_t size = kFixedBytes + message.key.size() + value_size;
  std::string out;
  PutU32(&out, static_cast<uint32_t>(size));
  out.push_back(static_cast<char>(message.kind));
  PutU32(&out, message.id);
  PutU32(&out, static_cast<uint32_t>(message.rank));
  PutU32(&out, static_cast<uint32_t>(message.number));
  PutU32(&out, static_cast<uint32_t>(message.key.size()));
  out += message.key;
  return out;
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
  size_t available = buffer_.size() - begin_;
  if (available < kSizeBytes) return false;
  const char* frame = buffer_.data() + begin_;
  size_t size = GetU32(frame);
  if (size < kFixedBytes || size > kFixedBytes + kMaxKeyBytes + max_value_bytes_) {
    return Status::Error(StatusCode::kBadData, "a frame of %zu bytes", size);
  }
  if (available < kSizeBytes + kFixedBytes) return false;
  const char* body = frame + kSizeBytes;
  uint8_t kind = static_cast<uint8_t>(body[0]);
  if (kind < static_cast<uint8_t>(MessageKind::kHello) ||
      kind > static_cast<uint8_t>(MessageKind::kPing)) {
    return Status::Error(StatusCode::kBadData, "a message of unknown kind %u", kind);
  }
  size_t key_size = GetU32(body + 13);
  if (key_size > kMaxKeyBytes || key_size > size - kFixedBytes ||
      size - kFixedBytes - key_size > max_value_bytes_) {
    return Status::Error(StatusCode::kBadData, "a key of %zu bytes in a frame of %zu", key_size,
                         size);
  }
  if (available < kSizeBytes + size) return false;
  out->kind = static_cast<MessageKind>(kind);
  out->id = GetU32(body + 1);
  out->rank = static_cast<int32_t>(GetU32(body + 5));
  out->number = static_cast<int32_t>(GetU32(body + 9));
  out->key.assign(body + kFixedBytes, key_size);
  out->value.assign(body + kFixedBytes + key_size, size - kFixedBytes - key_size);
  begin_ += kSizeBytes + size;
  return true;
}

}  // namespace engine::launch
