// How the ranks of one host find each other and exchange their segments.
//
//   store:       kit/rendezvous.h, with the name of each rank's listening socket
//   connection:  the higher rank connects to the lower one; each sends one Hello with the
//                descriptor of its segment. Afterwards: ArenaNotice*
//
// The name of a listener holds 128 random bits, and a Hello repeats it: who connects has read the
// store. Processes of other users are turned away.
#pragma once

#include <memory>
#include <vector>

#include "engine/host.h"
#include "peer.h"
#include "segment.h"

namespace engine::shm {

struct Mesh {
  std::unique_ptr<Segment> own;
  std::vector<std::unique_ptr<Peer>> peers;  // by rank; null for this one

  Control& control() const noexcept { return *reinterpret_cast<Control*>(own->data()); }
};

// Collective; `chunk_bytes` are those of a stage, the same on all ranks. kRendezvous names ranks that
// do not come in time.
Result<std::unique_ptr<Mesh>> Meet(Host& host, size_t chunk_bytes);

}  // namespace engine::shm
