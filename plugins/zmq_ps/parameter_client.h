// The parameters of a rank that live at servers.
#pragma once

#include <functional>
#include <mutex>
#include <span>
#include <utility>

#include "buckets.h"
#include "engine/ext/parameter_server.h"
#include "work.h"
#include "worker.h"

namespace engine::zmq_ps {

class ServedParameters final : public ParameterClientBase {
 public:
  // `serve` is called by Register, before anything is sent: the optimizer is for the server that is
  // part of this rank. May be empty.
  ServedParameters(const ParameterTraits& traits, uint64_t slice_bytes, Worker& worker,
                   Works& works, std::function<void(Optimizer&)> serve);

  // Says what the requests of a push or a pull carry; kInvalidArgument: it is not of a registered
  // bucket, of no step, or of wrong rows. [io-lane]
  Status Prepare(TransferWork* work) noexcept;

  ParameterTraits traits() const noexcept override { return traits_; }
  Status Register(Array<const ServedBucket> buckets, Optimizer& optimizer,
                  int64_t timeout_ms) noexcept override;
  Status Store(uint64_t key, int32_t state, const float* data,
               int64_t timeout_ms) noexcept override;
  Status Load(uint64_t key, int32_t state, float* data, int64_t timeout_ms) noexcept override;
  Status LastStep(int64_t timeout_ms, uint64_t* step) noexcept override;
  void SelectRows(uint64_t key, std::span<const int32_t> rows) noexcept override {
    selected_ = {key, rows};
  }
  Status BeginStep(const ServedStep& step) noexcept override;

 private:
  struct Question {
    Operation operation;
    uint64_t key = 0;  // of kLastStep none
    int32_t state = -1;
    const float* send = nullptr;
    float* recv = nullptr;
    int64_t timeout_ms = 0;
    uint64_t* last_step = nullptr;
  };

  Status Check(const Transfer& transfer) const noexcept;
  Status CheckRegistered() const noexcept;
  Status TakeRows(TransferWork* work) noexcept;
  Status Ask(Question question) noexcept;
  ServedStep step() const noexcept;

  const ParameterTraits traits_;
  const uint64_t slice_bytes_;
  Worker& worker_;
  Works& works_;
  const std::function<void(Optimizer&)> serve_;

  BucketTable buckets_;  // constant after Register
  bool registered_ = false;
  int32_t states_ = 0;                                      // of the optimizer
  std::pair<uint64_t, std::span<const int32_t>> selected_;  // of SelectRows; key 0: none

  mutable std::mutex mutex_;
  ServedStep step_{.step = 0};  // guarded by mutex_; 0: none was begun
};

}  // namespace engine::zmq_ps
