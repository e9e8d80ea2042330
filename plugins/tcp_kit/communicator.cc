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

Result<std::unique_ptr<TcpCommunicator>> TcpCommunicator::Create(Host& host,
                                                                 const NetworkSettings& settings,
                                                                 const MakeLane& make_lane,
                                                                 const LinkCost* cost) {
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Connections> connections,
                          Connections::Open(host, settings));
  return std::unique_ptr<TcpCommunicator>(
      new TcpCommunicator(host, settings, make_lane, cost, std::move(connections)));
}

TcpCommunicator::TcpCommunicator(Host& host, const NetworkSettings& settings,
                                 const MakeLane& make_lane, const LinkCost* cost,
                                 std::unique_ptr<Connections> connections)
    : plugin_(settings.plugin),
      ranks_(host.rank_info()),
      link_cost_(cost ? std::optional(*cost) : std::nullopt),
      connections_(std::move(connections)),
      failure_(host, connections_->prefix(),
               [this](const Status&, bool) { connections_->Shutdown(); }),
      progress_(host, connections_->prefix()),
      lanes_(plugin_, MakeLanes(make_lane), SpinTime(ranks_, connections_->lanes()), failure_,
             progress_) {}

kit::Transports TcpCommunicator::MakeLanes(const MakeLane& make_lane) {
  kit::Transports lanes;
  for (int lane = 0; lane < connections_->lanes(); ++lane) {
    lanes.push_back(make_lane(*connections_, lane, progress_));
  }
  return lanes;
}

// Members go from the last to the first: lanes_ joins the threads that use the others.
TcpCommunicator::~TcpCommunicator() {
  Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
}

void* TcpCommunicator::Query(std::string_view id) noexcept {
  if (id == WireProgress::kId) return static_cast<WireProgress*>(&progress_);
  return id == LinkModel::kId && link_cost_ ? static_cast<LinkModel*>(this) : nullptr;
}

CommunicatorTraits TcpCommunicator::traits() const noexcept {
  return {.kinds = kit::kCollectives,
          .dtypes = kit::kAllDTypes,
          .ordered = 1,
          .max_in_flight = lanes_.count(),
          .no_op = 0};
}

Status TcpCommunicator::Submit(const Transfer& transfer, Work** out) noexcept {
  ENGINE_RETURN_IF_ERROR(kit::CheckTransfer(transfer, ranks_, plugin_, TransferKind::kBarrier));
  return lanes_.Submit(transfer, out);
}

}  // namespace engine::tcp
