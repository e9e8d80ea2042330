// star_comm: every rank is connected to rank 0, which adds up in rank order and sends the result
// back. One transfer at a time; for few ranks and small models.
//
// On the connection of rank r, after it has said who it is:
//
//   connection := int32 r transfer*                           all in host order
//   transfer   := TransferId [contribution] done [result]     the first two from r, the rest to it
//   done       := one byte: all ranks are at this transfer
//
// Rank r contributes to an all-reduce, and to a broadcast of which it is the root; it gets the
// result of an all-reduce, and of a broadcast of another.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "engine/plugin.h"
#include "kit/communicator.h"
#include "kit/lanes.h"
#include "kit/options.h"
#include "kit/reduce.h"
#include "kit/rendezvous.h"
#include "kit/unique_fd.h"

namespace engine::star_comm {
namespace {

using Sockets = std::vector<kit::UniqueFd>;

// ---- The rendezvous: on rank 0 the sockets of ranks 1, 2, ...; on the others that of rank 0.

// Listens at `address` (numeric IPv4) on a free port, which it writes to *bound.
Result<kit::UniqueFd> Listen(const std::string& address, sockaddr_in* bound) noexcept {
  bound->sin_family = AF_INET;
  kit::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* const any = reinterpret_cast<sockaddr*>(bound);
  socklen_t size = sizeof(*bound);
  if (inet_pton(AF_INET, address.c_str(), &bound->sin_addr) == 1 &&
      bind(listener.get(), any, size) == 0 && listen(listener.get(), 1024) == 0 &&
      getsockname(listener.get(), any, &size) == 0) {
    return listener;
  }
  return Status::Error(StatusCode::kConfig,
                       "cannot listen at '%s': set the option address of star_comm to a numeric "
                       "IPv4 address of this host",
                       address.c_str());
}

// Also of accept; 0: none.
void SetTimeout(const kit::UniqueFd& socket, int64_t timeout_ms) noexcept {
  const timeval limit{timeout_ms / 1000, timeout_ms % 1000 * 1000};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

Result<Sockets> AcceptAll(const kit::UniqueFd& listener, int32_t world_size,
                          kit::Clock::time_point deadline) {
  Sockets sockets(static_cast<size_t>(world_size - 1));
  for (int32_t arrived = 1; arrived < world_size;) {
    const int64_t left_ms = kit::MillisecondsUntil(deadline);
    if (left_ms == 0) return Status::Error(StatusCode::kTimeout, "not all ranks have connected");
    SetTimeout(listener, left_ms);
    kit::UniqueFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    SetTimeout(socket, left_ms);  // not only ranks may connect
    int32_t rank = 0;
    const ssize_t got = recv(socket.get(), &rank, sizeof(rank), MSG_WAITALL);
    if (got != sizeof(rank) || rank < 1 || rank >= world_size) continue;
    SetTimeout(socket, 0);
    sockets[static_cast<size_t>(rank - 1)] = std::move(socket);
    ++arrived;
  }
  return sockets;
}

Result<Sockets> Connect(const std::string& address, int32_t rank) {
  sockaddr_in to{};
  std::memcpy(&to, address.data(), std::min(address.size(), sizeof(to)));
  kit::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket || connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    return Status::Error(StatusCode::kRendezvous, "cannot connect to rank 0: %s",
                         std::strerror(errno))
        .WithRank(0);
  }
  (void)send(socket.get(), &rank, sizeof(rank), MSG_NOSIGNAL);
  Sockets sockets;
  sockets.push_back(std::move(socket));
  return sockets;
}

Result<Sockets> Meet(const RankInfo& ranks, const Options& options, kit::Rendezvous& rendezvous) {
  if (ranks.world_size == 1) return Sockets();
  sockaddr_in bound{};
  kit::UniqueFd listener;
  if (ranks.rank == 0) {
    ENGINE_ASSIGN_OR_RETURN(listener, Listen(std::string(options.String("address")), &bound));
  }
  const auto* const own = reinterpret_cast<const char*>(&bound);
  ENGINE_ASSIGN_OR_RETURN(const auto addresses, rendezvous.Exchange({own, sizeof(bound)}));
  if (ranks.rank != 0) return Connect(addresses[0], ranks.rank);
  return AcceptAll(listener, ranks.world_size, rendezvous.deadline());
}

// ---- The transfers.

class Star final : public kit::Transport {
 public:
  Star(int32_t rank, Sockets sockets, kit::Progress& progress)
      : rank_(rank), sockets_(std::move(sockets)), progress_(progress) {
    const int on = 1;
    for (const auto& s : sockets_) setsockopt(s.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  Status Run(kit::PooledWork& work) noexcept override {
    const Transfer& t = work.transfer();
    if (t.kind == TransferKind::kBroadcast && t.root == rank_) kit::CopyOwn(t);
    if (rank_ != 0) return RunBesideRankZero(t, work);
    Status status = Collect(t);
    if (status.ok()) status = Answer(t, work);
    waiting_for_ = -1;
    return status;
  }
  int32_t WaitingFor() const noexcept override { return waiting_for_; }

  // Makes Run return. [any-thread]
  void Shutdown() noexcept {
    for (const auto& socket : sockets_) shutdown(socket.get(), SHUT_RDWR);
  }

 private:
  // Of a barrier there are no bytes.
  static bool Contributes(const Transfer& t, int32_t rank) noexcept {
    return t.kind == TransferKind::kAllReduce || t.root == rank;
  }
  static bool GetsResult(const Transfer& t, int32_t rank) noexcept {
    return t.kind == TransferKind::kAllReduce || t.root != rank;
  }
  int32_t PeerAt(size_t i) const noexcept { return rank_ == 0 ? static_cast<int32_t>(i) + 1 : 0; }

  Status RunBesideRankZero(const Transfer& t, kit::PooledWork& work) noexcept {
    const kit::TransferId id = kit::IdOf(t);
    char done = 0;
    work.MarkStarted();
    ENGINE_RETURN_IF_ERROR(Send(0, &id, sizeof(id)));
    if (Contributes(t, rank_)) ENGINE_RETURN_IF_ERROR(Send(0, t.send, kit::SizeBytes(t)));
    ENGINE_RETURN_IF_ERROR(Receive(0, &done, sizeof(done)));
    return GetsResult(t, rank_) ? Receive(0, t.recv, kit::SizeBytes(t)) : Status();
  }

  // The result of all ranks is then in `recv` of rank 0.
  Status Collect(const Transfer& t) noexcept {
    const auto count = static_cast<size_t>(t.count);
    const auto& kernels = kit::kReduceKernels.For(t.dtype, t.reduction);
    const bool reduces = t.kind == TransferKind::kAllReduce;
    if (reduces) {
      ENGINE_RETURN_IF_ERROR(MakeRoom(count));
      kernels.load(sum_.data(), t.send, count);
    }
    for (size_t i = 0; i < sockets_.size(); ++i) {
      kit::TransferId theirs;
      ENGINE_RETURN_IF_ERROR(Receive(i, &theirs, sizeof(theirs)));
      if (!Agree(kit::IdOf(t), theirs)) return Disagreement(kit::IdOf(t), theirs, PeerAt(i));
      if (!Contributes(t, PeerAt(i))) continue;
      void* const target = reduces ? term_.data() : t.recv;
      ENGINE_RETURN_IF_ERROR(Receive(i, target, kit::SizeBytes(t)));
      if (reduces) kernels.fold(sum_.data(), target, count);
    }
    if (reduces) kernels.store(t.recv, sum_.data(), count);
    return {};
  }

  Status Answer(const Transfer& t, kit::PooledWork& work) noexcept {
    const void* const result = t.kind == TransferKind::kBroadcast && t.root == 0 ? t.send : t.recv;
    const char done = 1;
    work.MarkStarted();
    for (size_t i = 0; i < sockets_.size(); ++i) {
      ENGINE_RETURN_IF_ERROR(Send(i, &done, sizeof(done)));
      if (GetsResult(t, PeerAt(i))) ENGINE_RETURN_IF_ERROR(Send(i, result, kit::SizeBytes(t)));
    }
    return {};
  }

  Status MakeRoom(size_t count) noexcept try {
    sum_.resize(std::max(sum_.size(), count * kit::kMaxAccumulatorBytes));
    term_.resize(sum_.size());
    return {};
  } catch (const std::exception&) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for %zu elements", count);
  }

  // These wait without limit: what is overdue is shut down by the communicator.
  Status Send(size_t i, const void* data, size_t size_bytes) noexcept {
    return All(i, size_bytes, [&](size_t done) {
      return send(sockets_[i].get(), static_cast<const char*>(data) + done, size_bytes - done,
                  MSG_NOSIGNAL);
    });
  }
  Status Receive(size_t i, void* data, size_t size_bytes) noexcept {
    return All(i, size_bytes, [&](size_t done) {
      return recv(sockets_[i].get(), static_cast<char*>(data) + done, size_bytes - done, 0);
    });
  }
  template <typename Move>
  Status All(size_t i, size_t size_bytes, Move move) noexcept {
    waiting_for_ = PeerAt(i);
    for (size_t done = 0; done < size_bytes;) {
      const ssize_t moved = move(done);
      if (moved == 0 || (moved < 0 && errno != EINTR)) {
        return Status::Error(StatusCode::kPeerLost, "rank %d closed its connection", PeerAt(i))
            .WithRank(PeerAt(i));
      }
      done += static_cast<size_t>(std::max<ssize_t>(moved, 0));
      progress_.Moved(static_cast<uint64_t>(std::max<ssize_t>(moved, 0)));
    }
    return {};
  }

  const int32_t rank_;
  const Sockets sockets_;  // see Meet
  kit::Progress& progress_;
  std::vector<char> sum_, term_;  // of rank 0, for the transfer that runs
  std::atomic<int32_t> waiting_for_{-1};
};

class StarCommunicator final : public Communicator {
 public:
  StarCommunicator(Host& host, const std::string& prefix, Sockets sockets)
      : ranks_(host.rank_info()),
        progress_(host, prefix),
        failure_(host, prefix,
                 [this](const Status&, bool) {
                   if (star_) star_->Shutdown();
                 }),
        lanes_("star_comm", MakeLane(std::move(sockets)), {}, failure_, progress_) {}
  ~StarCommunicator() override {
    Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
  }

  CommunicatorTraits traits() const noexcept override {
    return {.kinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kBroadcast) |
                     Bit(TransferKind::kBarrier),
            .dtypes = kit::kAllDTypes,
            .max_in_flight = lanes_.count()};
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(
        kit::CheckTransfer(transfer, ranks_, "star_comm", TransferKind::kBarrier));
    if ((traits().kinds & Bit(transfer.kind)) == 0) {
      return Status::Error(StatusCode::kUnsupported, "no %s: choose tcp", Name(transfer.kind));
    }
    return lanes_.Submit(transfer, out);
  }
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  kit::Transports MakeLane(Sockets sockets) {
    kit::Transports lanes;
    if (ranks_.world_size == 1) return lanes;
    auto star = std::make_unique<Star>(ranks_.rank, std::move(sockets), progress_);
    star_ = star.get();
    lanes.push_back(std::move(star));
    return lanes;
  }

  const RankInfo ranks_;
  kit::Progress progress_;
  Star* star_ = nullptr;  // of the lane, if there is one
  kit::Failure failure_;
  kit::Lanes lanes_;  // ends first
};

Status Create(Host& host, const Options& options, Object** out) noexcept {
  try {
    kit::Rendezvous rendezvous(host);
    ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
    ENGINE_ASSIGN_OR_RETURN(auto sockets, Meet(host.rank_info(), options, rendezvous));
    *out = new StarCommunicator(host, rendezvous.prefix(), std::move(sockets));
    return {};
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "star_comm cannot start: %s",
                         error.what());
  }
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "star_comm",
                    .version = "1.0.0",
                    .kind = PluginKind::kCommunicator,
                    .doc = "adds up on rank 0, over TCP; for few ranks and small models",
                    .create = Create},
                   NoOps(),
                   std::array{kit::StringOption("address", "127.0.0.1",
                                                "numeric IPv4 address at which rank 0 listens")});

}  // namespace engine::star_comm
