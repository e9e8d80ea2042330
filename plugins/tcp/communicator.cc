#include "communicator.h"

#include <exception>
#include <thread>

#include "collectives.h"
#include "describe.h"
#include "kit/communicator.h"

namespace engine::tcp {
namespace {

constexpr uint32_t kAllKinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kReduceScatter) |
                               Bit(TransferKind::kAllGather) | Bit(TransferKind::kBroadcast) |
                               Bit(TransferKind::kBarrier);
constexpr uint32_t kAllDTypes = Bit(DType::kFloat32) | Bit(DType::kInt32) | Bit(DType::kUint8) |
                                Bit(DType::kBFloat16) | Bit(DType::kFloat16);

// Waking a thread takes about as long as this. Spinning helps only if the one that is waited for
// has a core to itself.
std::chrono::microseconds SpinTime(const RankInfo& ranks, int lanes) {
  const auto threads = static_cast<unsigned>(ranks.local_world_size * (1 + lanes));
  return std::chrono::microseconds(std::thread::hardware_concurrency() >= threads ? 50 : 0);
}

}  // namespace

Result<std::unique_ptr<TcpCommunicator>> TcpCommunicator::Create(
    Host& host, const MeshSettings& settings) noexcept {
  try {
    std::unique_ptr<Mesh> mesh;
    if (host.rank_info().world_size > 1) {
      ENGINE_ASSIGN_OR_RETURN(mesh, Mesh::Connect(host, settings));
    }
    const int lanes = mesh ? settings.lanes : 0;
    return std::unique_ptr<TcpCommunicator>(new TcpCommunicator(host, std::move(mesh), lanes));
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot start tcp: %s", error.what());
  }
}

TcpCommunicator::TcpCommunicator(Host& host, std::unique_ptr<Mesh> mesh, int lanes)
    : ranks_(host.rank_info()),
      mesh_(std::move(mesh)),
      pool_(std::make_shared<WorkPool>(SpinTime(ranks_, lanes), lanes)),
      failure_(host, mesh_ ? mesh_->prefix() : std::string(), [this] {
        if (mesh_) mesh_->Shutdown();
      }) {
  for (int lane = 0; lane < lanes; ++lane) {
    lanes_.push_back(std::make_unique<Lane>(lane, mesh_->channel(lane), failure_));
  }
  if (lanes_.empty()) return;
  watchdog_ = std::make_unique<Watchdog>([this](Clock::time_point now) { return EndOverdue(now); });
}

TcpCommunicator::~TcpCommunicator() {
  watchdog_.reset();
  Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
  lanes_.clear();
}

CommunicatorTraits TcpCommunicator::traits() const noexcept {
  return {.kinds = kAllKinds,
          .dtypes = kAllDTypes,
          .ordered = 1,
          .max_in_flight = static_cast<uint32_t>(lanes_.size()),
          .measures_only = 0};
}

Status TcpCommunicator::Submit(const Transfer& transfer, Work** out) noexcept {
  if (failure_.raised()) return failure_.reason();
  ENGINE_RETURN_IF_ERROR(kit::CheckTransfer(transfer, ranks_, "tcp", TransferKind::kBarrier));
  PooledWork* const work = pool_->Take(transfer, lanes_.empty() ? 1 : 2);
  if (!work) return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
  *out = work;
  if (lanes_.empty()) {
    work->started_cell().store(MonotonicNs(), std::memory_order_relaxed);
    RunAlone(transfer);
    work->Complete({});
    return {};
  }
  // By position and not by Transfer::sequence: ranks that are out of step meet on one lane, see it
  // and say so.
  Lane& lane = *lanes_[submitted_++ % lanes_.size()];
  work->set_lane(&lane);
  const Clock::time_point deadline = work->deadline();
  lane.Enqueue(work);
  watchdog_->Watch(deadline);
  return {};
}

Clock::time_point TcpCommunicator::EndOverdue(Clock::time_point now) noexcept {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& lane : lanes_) {
    const Status overdue = lane->CheckDeadlines(now, &next);
    if (overdue.ok()) continue;
    const Status reported = failure_.RaiseFound(overdue);
    (void)reported;  // each work gets it
    return Clock::time_point::max();
  }
  return next;
}

void TcpCommunicator::Abort(const Status& reason) noexcept {
  failure_.Raise(reason);
}

}  // namespace engine::tcp
