// mpi_comm: a communicator whose ranks are the processes of an MPI launcher. One transfer at a time,
// on a thread of its own.
//
// MPI matches by order alone, so ranks first tell each other what they are about to move: a rank that
// does not come is seen, and another transfer is refused. What MPI may still write to when a
// transfer was given up is memory of this plugin, which stays.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "engine/plugin.h"
#include "kit/rendezvous.h"
#include "tests/system/conform/one_lane.h"

namespace engine::mpi_comm {
namespace {

constexpr int kIdTag = 1, kFarewellTag = 2;

MPI_Datatype TypeOf(DType dtype) {
  return dtype == DType::kFloat32 ? MPI_FLOAT : dtype == DType::kInt32 ? MPI_INT32_T : MPI_UINT8_T;
}
MPI_Op OperationOf(Reduction reduction) {
  return reduction == Reduction::kSum ? MPI_SUM : reduction == Reduction::kMax ? MPI_MAX : MPI_MIN;
}

// Of one transfer: what MPI reads and writes, until its requests are done.
struct Staging {
  std::vector<char> send, recv;
  std::vector<kit::TransferId> ids;
};

class MpiTransport final : public kit::Transport {
 public:
  MpiTransport(MPI_Comm group, const RankInfo& ranks, kit::Progress& progress)
      : group_(group), ranks_(ranks), progress_(progress) {}

  Status Run(kit::PooledWork& work) noexcept override {
    const Transfer& t = work.transfer();
    try {
      auto staging = std::make_unique<Staging>();
      work.MarkStarted();
      const Status status = Move(t, *staging);
      waiting_for_ = -1;
      if (!status.ok()) (void)staging.release();  // MPI may have requests that use it
      return status;
    } catch (const std::exception&) {
      return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
    }
  }
  int32_t WaitingFor() const noexcept override { return waiting_for_; }

  void Stop() noexcept { stopped_ = true; }
  void End() noexcept {}
  void Farewell() noexcept {
    MPI_Request sent = MPI_REQUEST_NULL;
    for (int32_t peer = 0; peer < ranks_.world_size; ++peer) {
      if (peer == ranks_.rank) continue;
      MPI_Isend(nullptr, 0, MPI_BYTE, peer, kFarewellTag, group_, &sent);
      MPI_Request_free(&sent);
    }
  }

 private:
  Status Move(const Transfer& t, Staging& staging) {
    ENGINE_RETURN_IF_ERROR(CompareIds(kit::IdOf(t), staging));
    const size_t bytes = kit::SizeBytes(t), all = bytes * static_cast<size_t>(ranks_.world_size);
    staging.send.resize(t.kind == TransferKind::kReduceScatter ? all : bytes);
    staging.recv.resize(t.kind == TransferKind::kAllGather ? all : bytes);
    const bool sends = t.kind != TransferKind::kBroadcast || t.root == ranks_.rank;
    if (sends && bytes > 0) std::memcpy(staging.send.data(), t.send, staging.send.size());
    MPI_Request request = MPI_REQUEST_NULL;
    if (Begin(t, staging, &request) != MPI_SUCCESS) {
      return Status::Error(StatusCode::kInternal, "MPI refuses it");
    }
    ENGINE_RETURN_IF_ERROR(Wait(&request));
    progress_.Moved(bytes);
    const bool in_send = t.kind == TransferKind::kBroadcast;  // MPI_Ibcast has one buffer
    const std::vector<char>& result = in_send ? staging.send : staging.recv;
    if (bytes > 0 && t.recv != nullptr) std::memcpy(t.recv, result.data(), result.size());
    return {};
  }

  int Begin(const Transfer& t, Staging& staging, MPI_Request* request) const {
    void *const send = staging.send.data(), *const recv = staging.recv.data();
    const int count = static_cast<int>(t.count);
    const MPI_Datatype type = TypeOf(t.dtype);
    const MPI_Op operation = OperationOf(t.reduction);
    switch (t.kind) {
      case TransferKind::kAllReduce:
        return MPI_Iallreduce(send, recv, count, type, operation, group_, request);
      case TransferKind::kReduceScatter:
        return MPI_Ireduce_scatter_block(send, recv, count, type, operation, group_, request);
      case TransferKind::kAllGather:
        return MPI_Iallgather(send, count, type, recv, count, type, group_, request);
      case TransferKind::kBroadcast:
        return MPI_Ibcast(send, count, type, t.root, group_, request);
      default:
        return MPI_Ibarrier(group_, request);
    }
  }

  Status CompareIds(const kit::TransferId& own, Staging& staging) {
    constexpr int kSize = sizeof(kit::TransferId);
    const auto world = static_cast<size_t>(ranks_.world_size),
               here = static_cast<size_t>(ranks_.rank);
    staging.ids.resize(world);
    staging.ids[here] = own;
    std::vector<MPI_Request> sent(world, MPI_REQUEST_NULL), come(world, MPI_REQUEST_NULL);
    for (size_t peer = 0; peer < world; ++peer) {
      if (peer == here) continue;
      const auto rank = static_cast<int>(peer);
      MPI_Irecv(&staging.ids[peer], kSize, MPI_BYTE, rank, kIdTag, group_, &come[peer]);
      MPI_Isend(&staging.ids[here], kSize, MPI_BYTE, rank, kIdTag, group_, &sent[peer]);
    }
    for (size_t peer = 0; peer < world; ++peer) {
      waiting_for_ = peer == here ? -1 : static_cast<int32_t>(peer);
      ENGINE_RETURN_IF_ERROR(Wait(&come[peer]));
      ENGINE_RETURN_IF_ERROR(Wait(&sent[peer]));
    }
    for (size_t peer = 0; peer < world; ++peer) {
      const auto rank = static_cast<int32_t>(peer);
      if (!Agree(own, staging.ids[peer])) return Disagreement(own, staging.ids[peer], rank);
    }
    return {};
  }

  Status Wait(MPI_Request* request) {
    for (int looks = 0;; ++looks) {
      int done = 0, leaves = 0;
      MPI_Status from{};
      MPI_Test(request, &done, MPI_STATUS_IGNORE);
      if (done != 0) return {};
      if (stopped_) return Status::Error(StatusCode::kAborted, "the communicator was stopped");
      MPI_Iprobe(MPI_ANY_SOURCE, kFarewellTag, group_, &leaves, &from);
      if (leaves != 0) {
        return Status::Error(StatusCode::kPeerLost, "rank %d gave up", from.MPI_SOURCE)
            .WithRank(from.MPI_SOURCE);
      }
      // Ranks may share cores.
      if (looks > 100) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // Never freed: the next one of its number would get messages that nobody has received.
  const MPI_Comm group_;
  const RankInfo ranks_;
  kit::Progress& progress_;
  std::atomic<bool> stopped_{false};
  std::atomic<int32_t> waiting_for_{-1};
};

// MPI starts once in a process, and ends with it.
Status StartMpi(const RankInfo& ranks) {
  int started = 0, provided = 0, rank = 0, size = 0;
  MPI_Initialized(&started);
  if (started == 0) {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    std::atexit([] { MPI_Finalize(); });
  }
  MPI_Query_thread(&provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (provided == MPI_THREAD_MULTIPLE && rank == ranks.rank && size == ranks.world_size) return {};
  return Status::Error(StatusCode::kConfig,
                       "mpi_comm needs ranks that are processes of mpirun: this one is rank %d of "
                       "%d there, and %d of %d here",
                       rank, size, ranks.rank, ranks.world_size);
}

// MPI_Comm_dup has no deadline: all ranks are known to be there when it is called.
StatusValue Create(Host& host, const Options&, Object** out) noexcept {
  return kit::CreateCommunicator(
      host, "mpi_comm", out, [&]() -> Result<std::unique_ptr<OneLane<MpiTransport>>> {
        const RankInfo ranks = host.rank_info();
        kit::Rendezvous rendezvous(host);
        MPI_Comm group = MPI_COMM_NULL;
        ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
        if (ranks.world_size > 1) {
          ENGINE_ASSIGN_OR_RETURN(const auto here, rendezvous.Exchange(""));
          ENGINE_RETURN_IF_ERROR(StartMpi(ranks));
          MPI_Comm_dup(MPI_COMM_WORLD, &group);
        }
        const uint32_t dtypes = Bit(DType::kFloat32) | Bit(DType::kInt32) | Bit(DType::kUint8);
        return std::make_unique<OneLane<MpiTransport>>(
            host, "mpi_comm", rendezvous.prefix(), dtypes, [&](kit::Progress& progress) {
              return std::make_unique<MpiTransport>(group, ranks, progress);
            });
      });
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "mpi_comm",
                    .version = "1.0.0",
                    .kind = PluginKind::kCommunicator,
                    .doc = "collectives of MPI, between the processes of mpirun",
                    .create = Create},
                   NoOps(), NoOptions());

}  // namespace engine::mpi_comm
