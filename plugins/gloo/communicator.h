// A Communicator that runs Gloo's own algorithms.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/host.h"
#include "interruptible.h"
#include "kit/failure.h"
#include "kit/lanes.h"

namespace engine::gloo {

enum class AllReduceChoice { kAuto, kRing, kBcube };

struct Settings {
  int lanes = 1;
  std::string interface;  // name of a network interface, or empty
  std::string hostname;   // own name or address, or empty
  AllReduceChoice all_reduce = AllReduceChoice::kAuto;
  int64_t rendezvous_timeout_ms = 30000;
};

class GlooCommunicator final : public Communicator, private kit::Transport {
 public:
  // Collective unless the world is one.
  static Result<std::unique_ptr<GlooCommunicator>> Create(Host& host,
                                                          const Settings& settings) noexcept;
  ~GlooCommunicator() override;

  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  // What the transfers of one lane use.
  struct Lane {
    std::shared_ptr<InterruptibleContext> context;  // all ranks, connected
    std::vector<std::byte> scratch;                 // of reduce-scatters
  };

  GlooCommunicator(Host& host, const Settings& settings, std::string prefix,
                   std::vector<Lane> lanes);

  Status Run(int lane, kit::PooledWork& work) noexcept override;
  int32_t WaitingFor(int lane) const noexcept override;
  void RunCollective(Lane& lane, const Transfer& transfer) const;
  void AllReduce(Lane& lane, const Transfer& transfer, const void* send, void* recv,
                 int64_t count) const;
  // The error of a transfer in which a wait failed.
  Status Explain(int lane, const Transfer& transfer, const Status& error) noexcept;

  Host& host_;
  const RankInfo ranks_;
  const AllReduceChoice all_reduce_;
  const std::string prefix_;  // of this communicator's keys in the store
  std::vector<Lane> lanes_;   // none in a world of one
  kit::Failure failure_;
  kit::Lanes queues_;  // uses all of the above
};

}  // namespace engine::gloo
