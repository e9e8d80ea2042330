// A Communicator over memory that all ranks map.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "arenas.h"
#include "collectives.h"
#include "engine/communicator.h"
#include "engine/host.h"
#include "kit/failure.h"
#include "kit/work.h"
#include "rendezvous.h"
#include "rounds.h"
#include "transfer_queue.h"
#include "worker.h"

namespace engine::shm {

struct ShmSettings {
  size_t chunk_bytes = 128 << 10;  // of a stage
  int64_t spin_us = 50;
};

class ShmCommunicator final : public CommunicatorBase {
 public:
  // Collective unless the world is one.
  static Result<std::unique_ptr<ShmCommunicator>> Create(Host& host, const ShmSettings& settings);
  ~ShmCommunicator() override;

  // SharedMemory::kId: a SharedMemory. WireProgress::kId: a WireProgress.
  void* Query(std::string_view id) noexcept override;

  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override;

 private:
  ShmCommunicator(Host& host, const ShmSettings& settings, std::unique_ptr<Mesh> mesh);

  const RankInfo ranks_;
  const std::unique_ptr<Mesh> mesh_;  // without segment and peers in a world of one
  Arenas arenas_;
  kit::Failure failure_;
  std::unique_ptr<Rounds> rounds_;  // these five are not there in a world of one
  std::unique_ptr<Collectives> collectives_;
  std::shared_ptr<TransferQueue> queue_;
  std::unique_ptr<Worker> worker_;  // runs queue_
  std::optional<kit::WorkPool> pool_;
};

}  // namespace engine::shm
