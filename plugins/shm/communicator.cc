#include "communicator.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kit/communicator.h"
#include "kit/lanes.h"

namespace engine::shm {
namespace {

// Threads that may be at the end of RunHead with a work that its user has released.
constexpr int kHeldWorks = 2;

int AllowedCores() noexcept {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Spinning helps only if the one that is waited for has a core to itself. A rank has two threads:
// the one that computes, and the worker.
SpinTimes SpinTimesFor(const RankInfo& ranks, int64_t spin_us) noexcept {
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const int per_rank = cores / std::max(ranks.local_world_size, 1);
  const int64_t spin_ns = spin_us * 1000;
  if (per_rank < 1) return {};
  if (std::min(per_rank, AllowedCores()) < 2) {
    // The worker would take the core from compute: it looks only for peers that are at work, too.
    return {
        .waiter_arrival_ns = spin_ns, .waiter_round_ns = spin_ns, .worker_round_ns = spin_ns / 4};
  }
  return {spin_ns, spin_ns, spin_ns, spin_ns, spin_ns};
}

}  // namespace

Result<std::unique_ptr<ShmCommunicator>> ShmCommunicator::Create(Host& host,
                                                                 const ShmSettings& settings) {
  const RankInfo ranks = host.rank_info();
  if (ranks.one_host == 0 || ranks.local_world_size != ranks.world_size) {
    return Status::Error(StatusCode::kConfig,
                         "communicator 'shm' connects ranks of one host, and only %d of %d are on "
                         "this one: use tcp",
                         ranks.local_world_size, ranks.world_size);
  }
  auto mesh = std::make_unique<Mesh>();
  if (ranks.world_size > 1) {
    ENGINE_ASSIGN_OR_RETURN(mesh, Meet(host, settings.chunk_bytes));
  }
  return std::unique_ptr<ShmCommunicator>(new ShmCommunicator(host, settings, std::move(mesh)));
}

ShmCommunicator::ShmCommunicator(Host& host, const ShmSettings& settings,
                                 std::unique_ptr<Mesh> mesh)
    : ranks_(host.rank_info()),
      mesh_(std::move(mesh)),
      arenas_(mesh_->peers),
      failure_([this](const Status& reason, bool by_caller) {
        if (mesh_->own) TellEnd(mesh_->control(), reason, by_caller);
      }) {
  if (!mesh_->own) {
    pool_.emplace(0, kit::WorkPool::Of<kit::PooledWork>());
    return;
  }
  rounds_ =
      std::make_unique<Rounds>(ranks_.rank, *mesh_, settings.chunk_bytes, failure_,
                               [this](kit::Clock::time_point now, kit::Clock::time_point moved) {
                                 return queue_->Overdue(now, moved);
                               });
  collectives_ = std::make_unique<Collectives>(*rounds_, arenas_);
  queue_ = std::make_shared<TransferQueue>(*collectives_, mesh_->control(), failure_,
                                           SpinTimesFor(ranks_, settings.spin_us));
  pool_.emplace(kHeldWorks, kit::WorkPool::Of<QueuedWork>(queue_));
  worker_ = std::make_unique<Worker>(mesh_->control(), [this] { queue_->RunPending(); });
}

// Abort ends every wait of the queue with an error. Drain returns when no thread is inside of it,
// and only then do the parts go that such a thread uses; works may live longer, with the queue.
ShmCommunicator::~ShmCommunicator() {
  Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
  if (queue_) queue_->Drain();
  worker_.reset();
}

void* ShmCommunicator::Query(std::string_view id) noexcept {
  if (id == WireProgress::kId) return static_cast<WireProgress*>(rounds_.get());
  return id == SharedMemory::kId ? static_cast<SharedMemory*>(&arenas_) : nullptr;
}

CommunicatorTraits ShmCommunicator::traits() const noexcept {
  return {.kinds = kit::kCollectives,
          .dtypes = kit::kAllDTypes,
          .ordered = 1,
          .max_in_flight = mesh_->own ? 1u : 0u,
          .no_op = 0};
}

Status ShmCommunicator::Submit(const Transfer& transfer, Work** out) noexcept {
  if (failure_.raised()) return failure_.reason();
  ENGINE_RETURN_IF_ERROR(kit::CheckTransfer(transfer, ranks_, "shm", TransferKind::kBarrier));
  ENGINE_ASSIGN_OR_RETURN(kit::PooledWork* const work, pool_->Take(transfer));
  *out = work;
  if (queue_) {
    queue_->Submit(static_cast<QueuedWork&>(*work));
    return {};
  }
  work->MarkStarted();
  kit::CopyOwn(transfer);
  work->Complete({});
  return {};
}

void ShmCommunicator::Abort(const Status& reason) noexcept {
  failure_.Abort(reason);
  if (worker_) worker_->Ring();
}

}  // namespace engine::shm
