#include "rendezvous.h"

#include <sys/random.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "kit/rendezvous.h"

namespace engine::shm {
namespace {

struct Hello {
  uint64_t magic = 0x326d68733a6e6765;  // of this layout of control.h
  int32_t rank = 0;
  int32_t world_size = 0;
  uint64_t chunk_bytes = 0;
  char listener[64] = {};  // of the lower rank; whoever connects need not have ended it with a zero

  bool IsTo(const std::string& name) const {
    return name == std::string_view(listener, strnlen(listener, sizeof listener));
  }
};

// Nobody waits in a circle: names are published before anybody connects, so every listener is
// there; a rank connects to all lower ones first, which takes no answer (connections wait in the
// backlog), and accepts the higher ones before it reads the answers of the lower.
class Rendezvous {
 public:
  Rendezvous(Host& host, size_t chunk_bytes)
      : host_(host),
        chunk_bytes_(chunk_bytes),
        ranks_(host.rank_info()),
        rendezvous_(host),
        connections_(static_cast<size_t>(ranks_.world_size)),
        mesh_(std::make_unique<Mesh>()) {
    mesh_->peers.resize(connections_.size());
  }

  Result<std::unique_ptr<Mesh>> Run() {
    ENGINE_RETURN_IF_ERROR(MakeSegment());
    ENGINE_RETURN_IF_ERROR(Listen());
    for (int peer = 0; peer < ranks_.rank; ++peer) ENGINE_RETURN_IF_ERROR(ConnectTo(peer));
    for (int n = ranks_.rank + 1; n < ranks_.world_size; ++n) ENGINE_RETURN_IF_ERROR(AcceptOne());
    for (int peer = 0; peer < ranks_.rank; ++peer) ENGINE_RETURN_IF_ERROR(ReadAnswer(peer));
    host_.Log(LogLevel::kDebug, "mapped the memory of all ranks");
    return std::move(mesh_);
  }

 private:
  size_t segment_bytes() const { return kControlBytes + kSlots * chunk_bytes_; }

  Status MakeSegment() {
    ENGINE_ASSIGN_OR_RETURN(mesh_->own, Segment::Create(segment_bytes(), "engine-shm-rank"));
    new (mesh_->own->data())
        Control();  // still zeroes: its fields are all of static lifetime rules
    return {};
  }

  Status Listen() {
    uint64_t random[2] = {};
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
      return Status::Error(StatusCode::kResourceExhausted, "no random bits: %s",
                           std::strerror(errno));
    }
    char name[sizeof(Hello::listener)];
    std::snprintf(name, sizeof(name), "engine-shm-%016llx%016llx",
                  static_cast<unsigned long long>(random[0]),
                  static_cast<unsigned long long>(random[1]));
    own_name_ = name;
    ENGINE_ASSIGN_OR_RETURN(listener_, Socket::Listen(own_name_));
    ENGINE_RETURN_IF_ERROR(rendezvous_.Begin());
    ENGINE_ASSIGN_OR_RETURN(names_, rendezvous_.Exchange(own_name_));
    return {};
  }

  Status Greet(const Socket& connection, const std::string& listener) {
    Hello hello{.rank = ranks_.rank, .world_size = ranks_.world_size, .chunk_bytes = chunk_bytes_};
    std::memcpy(hello.listener, listener.data(), listener.size());
    if (connection.Send(&hello, sizeof(hello), mesh_->own->descriptor())) return {};
    return Status::Error(StatusCode::kRendezvous, "a connection broke: %s", std::strerror(errno));
  }

  Status ConnectTo(int peer) {
    std::string& name = names_[static_cast<size_t>(peer)];
    if (name.size() >= sizeof(Hello::listener)) name.clear();
    auto connection = Socket::Connect(name);
    if (connection.status().code() == StatusCode::kResourceExhausted) return connection.status();
    if (!connection.ok()) {
      return Status::Error(StatusCode::kRendezvous,
                           "cannot reach rank %d on this host (%s): it has ended, or it runs in "
                           "another container or network namespace, where tcp would reach it",
                           peer, connection.status().message())
          .WithRank(peer);
    }
    connections_[static_cast<size_t>(peer)] = std::move(*connection);
    return Greet(connections_[static_cast<size_t>(peer)], name).WithContext("rank %d", peer);
  }

  // The next higher rank, whichever it is.
  Status AcceptOne() {
    while (true) {
      auto connection = listener_.Accept(rendezvous_.deadline());
      if (connection.status().code() == StatusCode::kTimeout) return Missing();
      if (!connection.ok()) return connection.status();
      Hello hello;
      kit::UniqueFd descriptor;
      // A process that connects and says nothing is no rank: the others wait behind it in vain.
      const Status got =
          connection->ReceiveBy(rendezvous_.deadline(), &hello, sizeof(hello), &descriptor);
      const bool ours = got.ok() && hello.IsTo(own_name_) && hello.rank > ranks_.rank &&
                        hello.rank < ranks_.world_size &&
                        !mesh_->peers[static_cast<size_t>(hello.rank)];
      if (!ours) continue;
      ENGINE_RETURN_IF_ERROR(Greet(*connection, own_name_));
      return Add(hello, std::move(descriptor), std::move(*connection));
    }
  }

  Status ReadAnswer(int peer) {
    Socket& connection = connections_[static_cast<size_t>(peer)];
    Hello hello;
    kit::UniqueFd descriptor;
    const Status got =
        connection.ReceiveBy(rendezvous_.deadline(), &hello, sizeof(hello), &descriptor);
    if (got.code() == StatusCode::kTimeout) return Missing();
    if (!got.ok()) {
      return Status::Error(StatusCode::kRendezvous, "rank %d left before all ranks had met", peer)
          .WithRank(peer);
    }
    if (hello.rank != peer || !hello.IsTo(names_[static_cast<size_t>(peer)])) {
      return Status::Error(StatusCode::kRendezvous, "another than rank %d answered for it", peer)
          .WithRank(peer);
    }
    return Add(hello, std::move(descriptor), std::move(connection));
  }

  Status Add(const Hello& hello, kit::UniqueFd descriptor, Socket connection) {
    if (hello.magic != Hello().magic || hello.world_size != ranks_.world_size ||
        hello.chunk_bytes != chunk_bytes_) {
      return Status::Error(StatusCode::kRendezvous,
                           "rank %d has chunk_bytes %llu, this rank %zu: all ranks must have the "
                           "same options and the same build of shm",
                           hello.rank, static_cast<unsigned long long>(hello.chunk_bytes),
                           chunk_bytes_)
          .WithRank(hello.rank);
    }
    auto segment = Segment::Map(std::move(descriptor), segment_bytes());
    if (!segment.ok()) return segment.status().WithContext("rank %d", hello.rank);
    mesh_->peers[static_cast<size_t>(hello.rank)] = std::make_unique<Peer>(
        hello.rank, std::move(connection), std::move(*segment), chunk_bytes_);
    return {};
  }

  // The deadline is over. All ranks have published their names, so some rank waits for another: the
  // first that this one has not met is named.
  Status Missing() {
    int rank = 0;
    while (rank == ranks_.rank || mesh_->peers[static_cast<size_t>(rank)]) ++rank;
    return kit::NotAppeared({rank}, ranks_.world_size, ranks_.rendezvous_timeout_ms);
  }

  Host& host_;
  const size_t chunk_bytes_;
  const RankInfo ranks_;
  kit::Rendezvous rendezvous_;
  std::string own_name_;
  Socket listener_;
  std::vector<Socket> connections_;  // to lower ranks, until they have answered
  std::vector<std::string> names_;   // of their listeners
  std::unique_ptr<Mesh> mesh_;
};

}  // namespace

Result<std::unique_ptr<Mesh>> Meet(Host& host, size_t chunk_bytes) {
  return Rendezvous(host, chunk_bytes).Run();
}

}  // namespace engine::shm
