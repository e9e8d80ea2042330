// How some of the ranks get a communicator of their own: all say in the store (kit/rendezvous.h) what
// they want, and when everybody has, NCCL splits the communicator that they have.
//
//   value of <prefix>/split/<n> := colour ' ' key    in decimal; n counts the splits of a
//   communicator
//
// NCCL would find out by itself who belongs together, but not who is missing.
#pragma once

#include <memory>
#include <string>

#include "comm.h"
#include "kit/failure.h"
#include "kit/rendezvous.h"
#include "pipeline.h"
#include "rendezvous.h"

namespace engine::nccl {

class Split {
 public:
  // Split number `number` of the communicator of `parents`. Borrows all; a failure of the
  // communicator ends every wait in here.
  Split(Host& host, const kit::Members& parents, uint64_t number, const Settings& settings,
        const kit::Failure& failure);

  // Waits for all ranks, and gives those of this rank's colour; for kNoColor none. kRendezvous
  // names the first rank that is missing.
  Result<kit::Members> Meet(int32_t color, int32_t key);

  // With what Meet gave for the same arguments: the new communicator of NCCL, or null for kNoColor.
  // Waits until `pipeline` has handed all it has to NCCL, which keeps the order of submission.
  Result<std::unique_ptr<Comm>> Begin(Comm& parent, Pipeline& pipeline, int32_t color, int32_t key);

 private:
  Status AwaitChild(Comm& parent, Pipeline& pipeline, int32_t color, int32_t key,
                    ncclComm_t* child);
  Status GiveUp();  // or not

  Host& host_;
  const kit::Members& parents_;
  const std::string prefix_;
  const Settings settings_;
  const kit::Failure& failure_;
  const int64_t timeout_ms_;
  const kit::Clock::time_point deadline_;
};

}  // namespace engine::nccl
