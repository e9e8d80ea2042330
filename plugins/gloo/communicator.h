// A Communicator that runs Gloo's own algorithms.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/host.h"
#include "interruptible.h"
#include "kit/deadline.h"
#include "kit/describe.h"
#include "kit/failure.h"
#include "kit/lanes.h"

namespace engine::gloo {

struct Settings {
  int lanes = 1;
  std::string interface;            // name of a network interface, or empty
  std::string hostname;             // own name or address, or empty
  std::string all_reduce = "auto";  // the option of that name
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
  // What the transfers of one lane use, and the one that is under way.
  struct Lane {
    std::shared_ptr<InterruptibleContext> context;  // all ranks, connected
    std::vector<std::byte> scratch;                 // of reduce-scatters
    std::vector<bool> there;  // of the watcher: ranks that were seen in the transfer, or beyond it

    std::mutex mutex;  // guards the rest
    bool running = false;
    bool published = false;  // in the store: it has stalled
    Transfer transfer;
    kit::Clock::time_point started, deadline;
  };
  using Lanes = std::vector<std::unique_ptr<Lane>>;

  GlooCommunicator(Host& host, const Settings& settings, std::string prefix, Lanes lanes);

  Status Run(int lane, kit::PooledWork& work) noexcept override;
  int32_t WaitingFor(int lane) const noexcept override;
  void RunCollective(Lane& lane, const Transfer& transfer) const;
  void AllReduce(Lane& lane, const Transfer& transfer, const void* send, void* recv,
                 int64_t count) const;

  void Begin(int number, const kit::PooledWork& work) noexcept;
  void End(int number) noexcept;
  // Looks at transfers that take long; the time of the next look.
  kit::Clock::time_point Look(kit::Clock::time_point now) noexcept;
  Status LookAt(int number, kit::Clock::time_point now, kit::Clock::time_point* next);
  // OK unless a peer is in something else; adds the peers that are in the transfer or beyond it.
  Status Compare(int number, const kit::TransferId& own, std::vector<bool>* there) noexcept;
  Status Overdue(int number, const Transfer& transfer) const noexcept;
  // The rank to blame for broken connections, -1 if there are none.
  int32_t Lost() noexcept;
  std::string StallKey(int number, int32_t rank) const;

  Host& host_;
  const RankInfo ranks_;
  const std::string all_reduce_;
  const std::string prefix_;  // of this communicator's keys in the store
  const Lanes lanes_;         // none in a world of one
  kit::Failure failure_;
  std::unique_ptr<kit::DeadlineWatcher> watcher_;  // calls Look; null without lanes
  kit::Lanes queues_;                              // uses all of the above
};

}  // namespace engine::gloo
