// A Communicator over TCP connections. A plugin gives it lanes: how one transfer moves.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/communicator.h"
#include "engine/ext/link_cost.h"
#include "engine/host.h"
#include "kit/failure.h"
#include "kit/lanes.h"
#include "kit/progress.h"
#include "tcp_kit/connections.h"

namespace engine::tcp {

// Runs transfers one after another, over connections of its own.
class Lane {
 public:
  virtual ~Lane() = default;
  // See kit::Transport: one thread at a time, so a lane needs no lock.
  virtual Status Run(kit::PooledWork& work) noexcept = 0;
  // The peer that the running transfer waits for, or -1. [any-thread]
  virtual int waiting_for() const noexcept = 0;
};

class TcpCommunicator final : public Communicator, private kit::Transport {
 public:
  // Called for each lane; what it is given outlives the lane.
  using MakeLane = std::function<std::unique_ptr<Lane>(Connections& connections, int number,
                                                       kit::Progress& progress)>;
  // Collective unless the world is one. Without `cost` there is no extension kLinkCostId.
  static Result<std::unique_ptr<TcpCommunicator>> Create(Host& host,
                                                         const NetworkSettings& settings,
                                                         const MakeLane& make_lane,
                                                         const LinkCost* cost = nullptr);
  ~TcpCommunicator() override;

  void* Query(std::string_view id) noexcept override;
  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  TcpCommunicator(Host& host, const NetworkSettings& settings, const LinkCost* cost,
                  std::unique_ptr<Connections> connections);

  Status Run(int lane, kit::PooledWork& work) noexcept override;
  int32_t WaitingFor(int lane) const noexcept override;

  const char* const plugin_;
  const RankInfo ranks_;
  std::optional<LinkCost> link_cost_;
  const std::unique_ptr<Connections> connections_;
  kit::Failure failure_;
  kit::Progress progress_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  kit::Lanes queues_;  // uses all of the above
};

}  // namespace engine::tcp
