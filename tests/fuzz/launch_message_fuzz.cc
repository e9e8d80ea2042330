// Any bytes in place of messages to a store, in pieces of any size: refused, or frames that are
// written back to the same bytes. The first byte is the size of a piece.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "app/launch/message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace engine::launch;  // NOLINT(google-build-using-namespace): of this function only
  if (size == 0) return 0;
  const size_t piece = data[0] + 1u;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  MessageReader reader;
  reader.set_max_value_bytes(1 << 10);
  Message message;
  size_t taken = 0;
  for (size_t begin = 0; begin < bytes.size(); begin += piece) {
    reader.Append(bytes.data() + begin, std::min(piece, bytes.size() - begin));
    for (;;) {
      const auto next = reader.Next(&message);
      if (!next.ok()) return 0;
      if (!*next) break;
      ENGINE_CHECK(message.key.size() <= kMaxKeyBytes && message.value.size() <= 1 << 10);
      const std::string frame = Encode(message);
      ENGINE_CHECK(bytes.compare(taken, frame.size(), frame) == 0);
      taken += frame.size();
      ENGINE_CHECK(!DecodeStatus(message).ok());
    }
  }
  return 0;
}
