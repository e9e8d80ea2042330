// A Communicator over TCP connections.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "all_reduce_choice.h"
#include "channel.h"
#include "collectives.h"
#include "engine/communicator.h"
#include "engine/ext/link_cost.h"
#include "engine/host.h"
#include "kit/failure.h"
#include "kit/lanes.h"
#include "kit/progress.h"
#include "tcp_kit/connections.h"
#include "wire.h"

namespace engine::tcp {

class TcpCommunicator final : public Communicator, private kit::Transport {
 public:
  // Collective unless the world is one.
  static Result<std::unique_ptr<TcpCommunicator>> Create(Host& host,
                                                         const NetworkSettings& settings);
  ~TcpCommunicator() override;

  void* Query(std::string_view id) noexcept override;
  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  // What runs the transfers of one lane.
  struct Lane {
    Lane(Connections& connections, int number, kit::Progress& progress)
        : channel(connections, number, progress) {}
    Channel channel;
    Collectives collectives{channel};
  };

  TcpCommunicator(Host& host, std::unique_ptr<Connections> connections);

  Status Run(int lane, kit::PooledWork& work) noexcept override;
  int32_t WaitingFor(int lane) const noexcept override;

  const RankInfo ranks_;
  LinkCost link_cost_{.message_bytes = kPartBytes,
                      .exchange_up_to_bytes = kExchangeUpToBytes,
                      .header_bytes = sizeof(TransferHeader)};
  const std::unique_ptr<Connections> connections_;  // null in a world of one
  kit::Failure failure_;
  kit::Progress progress_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  kit::Lanes queues_;  // uses all of the above
};

}  // namespace engine::tcp
