// A Communicator that runs Gloo's own algorithms.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/communicator.h"
#include "engine/host.h"
#include "kit/failure.h"
#include "kit/lanes.h"
#include "kit/progress.h"
#include "tcp_kit/connections.h"
#include "transport.h"

namespace engine::gloo {

class GlooCommunicator final : public Communicator, private kit::Transport {
 public:
  // Collective unless the world is one. `all_reduce`: the option of that name.
  static Result<std::unique_ptr<GlooCommunicator>> Create(Host& host,
                                                          const tcp::NetworkSettings& network,
                                                          std::string all_reduce);
  ~GlooCommunicator() override;

  void* Query(std::string_view id) noexcept override;
  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  // What the transfers of one lane use.
  struct Lane {
    Lane(tcp::Connections& connections, int number, kit::Progress& progress);
    const std::shared_ptr<gloo::Transport> transport;
    const std::shared_ptr<Context> context;
    std::vector<std::byte> scratch;  // of reduce-scatters
  };

  GlooCommunicator(Host& host, std::string all_reduce,
                   std::unique_ptr<tcp::Connections> connections);

  Status Run(int lane, kit::PooledWork& work) noexcept override;
  int32_t WaitingFor(int lane) const noexcept override;
  void RunCollective(Lane& lane, const Transfer& transfer) const;
  void AllReduce(Lane& lane, const Transfer& transfer, const void* send, void* recv,
                 int64_t count) const;

  const RankInfo ranks_;
  const std::string all_reduce_;
  const std::unique_ptr<tcp::Connections> connections_;  // null in a world of one
  kit::Failure failure_;
  kit::Progress progress_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  kit::Lanes queues_;  // uses all of the above
};

}  // namespace engine::gloo
