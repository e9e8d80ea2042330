// A Communicator over gloo's TCP transport.
#pragma once

#include <memory>
#include <vector>

#include "engine/communicator.h"
#include "engine/host.h"
#include "failure.h"
#include "lane.h"
#include "mesh.h"
#include "watchdog.h"
#include "work.h"

namespace engine::tcp {

class TcpCommunicator final : public Communicator {
 public:
  // Collective unless the world is one.
  static Result<std::unique_ptr<TcpCommunicator>> Create(Host& host,
                                                         const MeshSettings& settings) noexcept;
  ~TcpCommunicator() override;

  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override;

 private:
  TcpCommunicator(Host& host, std::unique_ptr<Mesh> mesh, int lanes);

  Clock::time_point EndOverdue(Clock::time_point now) noexcept;

  const RankInfo ranks_;
  uint64_t submitted_ = 0;            // [io-lane]
  const std::unique_ptr<Mesh> mesh_;  // null in a world of one
  const std::shared_ptr<WorkPool> pool_;
  Failure failure_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<Watchdog> watchdog_;  // looks at lanes_
};

}  // namespace engine::tcp
