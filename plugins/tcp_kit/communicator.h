// A Communicator over TCP connections. A plugin says how one transfer moves on a lane.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "engine/communicator.h"
#include "engine/ext/link_cost.h"
#include "engine/host.h"
#include "kit/failure.h"
#include "kit/lanes.h"
#include "kit/progress.h"
#include "tcp_kit/connections.h"

namespace engine::tcp {

class TcpCommunicator final : public CommunicatorBase, LinkModelBase {
 public:
  // Called for each lane; what it is given outlives the lane.
  using MakeLane = std::function<std::unique_ptr<kit::Transport>(
      Connections& connections, int number, kit::Progress& progress)>;
  // Collective unless the world is one. Without `cost` there is no LinkModel.
  static Result<std::unique_ptr<TcpCommunicator>> Create(Host& host,
                                                         const NetworkSettings& settings,
                                                         const MakeLane& make_lane,
                                                         const LinkCost* cost = nullptr);
  ~TcpCommunicator() override;

  void* Query(std::string_view id) noexcept override;
  LinkCost cost() const noexcept override { return link_cost_.value_or(LinkCost()); }
  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  TcpCommunicator(Host& host, const NetworkSettings& settings, const MakeLane& make_lane,
                  const LinkCost* cost, std::unique_ptr<Connections> connections);
  kit::Transports MakeLanes(const MakeLane& make_lane);

  const char* const plugin_;
  const RankInfo ranks_;
  std::optional<LinkCost> link_cost_;
  const std::unique_ptr<Connections> connections_;
  kit::Failure failure_;
  kit::Progress progress_;
  kit::Lanes lanes_;  // uses all of the above
};

}  // namespace engine::tcp
