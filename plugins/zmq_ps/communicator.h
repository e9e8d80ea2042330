// A Communicator whose ranks host the parameter servers themselves.
#pragma once

#include <memory>

#include "engine/communicator.h"
#include "engine/host.h"
#include "rendezvous.h"
#include "server.h"
#include "work.h"
#include "worker.h"

namespace engine::zmq_ps {

struct CommunicatorSettings {
  RendezvousSettings rendezvous;
  int io_threads = 1;
  int reduce_threads = 1;
  uint64_t slice_bytes = 1 << 20;
  bool ordered = false;
  int buffer_bytes = 0;
  int64_t resend_ms = 500;
  int64_t lost_after_ms = 1000;
};

class ZmqPsCommunicator final : public Communicator {
 public:
  // Collective unless the world is one.
  static Result<std::unique_ptr<ZmqPsCommunicator>> Create(
      Host& host, const CommunicatorSettings& settings) noexcept;
  ~ZmqPsCommunicator() override;

  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override;

 private:
  ZmqPsCommunicator(Host& host, bool ordered);
  Status Connect(const CommunicatorSettings& settings);
  Status Check(const Transfer& transfer) const noexcept;
  void ReportBalance() noexcept;

  Host& host_;
  const RankInfo ranks_;
  const bool ordered_;
  const std::shared_ptr<WorkPool> pool_;
  std::unique_ptr<Server> server_;  // null where another rank hosts it
  std::unique_ptr<Worker> worker_;  // null in a world of one

  mutable std::mutex mutex_;
  Status abort_reason_;  // guarded by mutex_; of a world of one
};

}  // namespace engine::zmq_ps
