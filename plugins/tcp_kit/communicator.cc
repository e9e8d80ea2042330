#include "tcp_kit/communicator.h"

#include <chrono>
#include <thread>
#include <utility>

#include "kit/communicator.h"

namespace engine::tcp {
namespace {

// Waking a thread takes about as long as this. Spinning helps only if the one that is waited for
// has a core to itself.
std::chrono::microseconds SpinTime(const RankInfo& ranks, int lanes) {
  const auto threads = static_cast<unsigned>(ranks.local_world_size * (1 + lanes));
  return std::chrono::microseconds(std::thread::hardware_concurrency() >= threads ? 50 : 0);
}

}  // namespace

// Nothing runs before the first Submit.
Result<std::unique_ptr<TcpCommunicator>> TcpCommunicator::Create(Host& host,
                                                                 const NetworkSettings& settings,
                                                                 const MakeLane& make_lane,
                                                                 const LinkCost* cost) {
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Connections> connections,
                          Connections::Open(host, settings));
  std::unique_ptr<TcpCommunicator> made(
      new TcpCommunicator(host, settings, cost, std::move(connections)));
  for (int lane = 0; lane < made->connections_->lanes(); ++lane) {
    made->lanes_.push_back(make_lane(*made->connections_, lane, made->progress_));
  }
  return made;
}

TcpCommunicator::TcpCommunicator(Host& host, const NetworkSettings& settings, const LinkCost* cost,
                                 std::unique_ptr<Connections> connections)
    : plugin_(settings.plugin),
      ranks_(host.rank_info()),
      link_cost_(cost ? std::optional(*cost) : std::nullopt),
      connections_(std::move(connections)),
      failure_(host, connections_->prefix(),
               [this](const Status&, bool) { connections_->Shutdown(); }),
      progress_(host, connections_->prefix()),
      queues_(plugin_, connections_->lanes(), SpinTime(ranks_, connections_->lanes()), *this,
              failure_, progress_) {}

// Members go from the last to the first: queues_ joins the threads that use the others.
TcpCommunicator::~TcpCommunicator() {
  Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
}

void* TcpCommunicator::Query(std::string_view id) noexcept {
  if (id == kWireProgressId) return static_cast<WireProgress*>(&progress_);
  return id == kLinkCostId && link_cost_ ? &*link_cost_ : nullptr;
}

CommunicatorTraits TcpCommunicator::traits() const noexcept {
  return {.kinds = kit::kCollectives,
          .dtypes = kit::kAllDTypes,
          .ordered = 1,
          .max_in_flight = queues_.count(),
          .no_op = 0};
}

Status TcpCommunicator::Submit(const Transfer& transfer, Work** out) noexcept {
  ENGINE_RETURN_IF_ERROR(kit::CheckTransfer(transfer, ranks_, plugin_, TransferKind::kBarrier));
  return queues_.Submit(transfer, out);
}

Status TcpCommunicator::Run(int lane, kit::PooledWork& work) noexcept {
  return lanes_[static_cast<size_t>(lane)]->Run(work);
}

int32_t TcpCommunicator::WaitingFor(int lane) const noexcept {
  return lanes_[static_cast<size_t>(lane)]->waiting_for();
}

}  // namespace engine::tcp
