// Any bytes where another rank of shm writes: the messages of its connection and its control block.
// What it says of its end and of its transfers is text, and no place that it names lies outside of
// what it has announced.
//
//   input = count notice[count] control     count: one byte, of ArenaNotice; what is short is zeroes
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kit/describe.h"
#include "peer.h"

namespace engine::shm {
namespace {

constexpr size_t kMaxArena = 1 << 16;

// Takes `size` bytes off the front of the input.
void Take(const uint8_t** data, size_t* left, void* out, size_t size) {
  const size_t there = std::min(size, *left);
  if (there > 0) std::memcpy(out, *data, there);
  *data += there;
  *left -= there;
}

// With memory of the announced size, or without, sealed or not, by `reserved`.
void Announce(const Socket& connection, const ArenaNotice& notice) {
  const kit::UniqueFd memory(memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ENGINE_CHECK(ftruncate(memory.get(), static_cast<off_t>(notice.size_bytes % kMaxArena)) == 0);
  if ((notice.reserved & 1) == 0) {
    fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  }
  (void)connection.Send(&notice, sizeof notice, (notice.reserved & 2) == 0 ? memory.get() : -1);
}

void LookAt(Peer& peer) {
  (void)EndOf(peer.control(), peer.rank());
  for (const Slot& slot : peer.control().slots) {
    (void)kit::Disagreement({}, slot.opening.id, peer.rank());
    const ArenaPlaces& places = slot.opening.places;
    const uint64_t bytes = slot.opening.id.key;
    const auto place = peer.Place(places.send_arena, places.send_offset, bytes);
    if (place.ok() && bytes > 0) (*place)[0] = (*place)[bytes - 1];
  }
}

}  // namespace
}  // namespace engine::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace engine;       // NOLINT(google-build-using-namespace)
  using namespace engine::shm;  // NOLINT(google-build-using-namespace)
  int pair[2];
  ENGINE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  const Socket there{kit::UniqueFd(pair[1])};
  uint8_t count = 0;
  Take(&data, &size, &count, sizeof count);
  for (int i = 0; i < count % 8; ++i) {
    ArenaNotice notice;
    Take(&data, &size, &notice, sizeof notice);
    Announce(there, notice);
  }
  auto segment = Segment::Create(kControlBytes, "fuzz");
  ENGINE_CHECK(segment.ok());
  Take(&data, &size, (*segment)->data(), kControlBytes);
  Peer peer(1, Socket(kit::UniqueFd(pair[0])), std::move(*segment), 0);
  LookAt(peer);
  return 0;
}
