// A run with parameters at servers whose members are threads of one test:
//
//   ServedRun run({.world_size = 2, .mode = UpdateMode::kAsync});
//   std::unique_ptr<Communicator> communicator = run.MakeRank(0);   // on any thread
//   auto* client = static_cast<ParameterClient*>(communicator->Query(kParameterClientId));
//
// Collectives (float32 sums) meet in a Hub by key, pushes and pulls in a ParameterTable. To destroy
// a communicator is to leave the run. With kSync what needs a rank that has left fails; else the
// others go on, and MakeRank makes one that takes its place. Link parameter_table.cc.
#pragma once

#include <memory>

#include "engine/ext/parameter_server.h"
#include "tests/support/hub_communicator.h"
#include "tests/support/parameter_table.h"

namespace engine::test {

struct ServedSettings {
  int world_size = 2;
  UpdateMode mode = UpdateMode::kSync;
  int32_t staleness = 0;
  int64_t max_delay_us = 0;  // before a transfer is carried out
  uint32_t seed = 1;
};

// Outlives the communicators that it makes.
class ServedRun {
 public:
  explicit ServedRun(const ServedSettings& settings)
      : table_({.world_size = settings.world_size,
                .mode = settings.mode,
                .staleness = settings.staleness,
                .max_delay_us = settings.max_delay_us,
                .seed = settings.seed,
                .on_failure = [this](int rank, const Status& status) { End(rank, status); }}),
        hub_(HubSettings{
            .world_size = settings.world_size,
            .max_delay_us = settings.max_delay_us,
            .seed = settings.seed + 1,
            .match = HubMatch::kKey,
            .survives_losses = settings.mode != UpdateMode::kSync,
            .on_failure = [this](int rank, const Status& status) { End(rank, status); }}) {}

  std::unique_ptr<Communicator> MakeRank(int rank);

  Hub& hub() { return hub_; }
  ParameterTable& table() { return table_; }

  // Ends a rank for the others and for itself; the first reason stays.
  void End(int rank, const Status& reason) {
    hub_.End(rank, reason);
    table_.End(rank, reason);
  }

 private:
  ParameterTable table_;
  Hub hub_;
};

class ServedClient final : public ParameterClient {
 public:
  ServedClient(ParameterTable& table, int rank) : table_(table), rank_(rank) {}

  ParameterTraits traits() const noexcept override { return table_.traits(); }
  Status Register(std::span<const ServedBucket> buckets, Optimizer& optimizer,
                  int64_t) noexcept override {
    return table_.Register(rank_, buckets, optimizer);
  }
  Status Store(uint64_t key, int32_t state, const float* data, int64_t) noexcept override {
    return table_.Store(rank_, key, state, data);
  }
  Status Load(uint64_t key, int32_t state, float* data, int64_t timeout_ms) noexcept override {
    return table_.Load(rank_, key, state, data, timeout_ms);
  }
  Status LastStep(int64_t, uint64_t* step) noexcept override {
    return table_.LastStep(rank_, step);
  }
  void SelectRows(uint64_t key, std::span<const int32_t> rows) noexcept override {
    table_.SelectRows(rank_, key, rows);
  }
  Status BeginStep(const ServedStep& step) noexcept override {
    return table_.BeginStep(rank_, step);
  }

 private:
  ParameterTable& table_;
  const int rank_;
};

class ServedCommunicator final : public Communicator {
 public:
  ServedCommunicator(ServedRun& run, int rank)
      : run_(run), rank_(rank), client_(run.table(), rank) {}
  ~ServedCommunicator() override {
    Abort(Status::Error(StatusCode::kAborted, "its communicator is gone"));
    run_.hub().Drain();
    run_.table().Drain();
  }

  void* Query(std::string_view id) noexcept override {
    return id == kParameterClientId ? static_cast<ParameterClient*>(&client_) : nullptr;
  }
  CommunicatorTraits traits() const noexcept override {
    return {.kinds = 127, .dtypes = Bit(DType::kFloat32), .ordered = 0};
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    const bool served =
        transfer.kind == TransferKind::kPush || transfer.kind == TransferKind::kPull;
    if (served) return run_.table().Submit(rank_, transfer, out);
    return run_.hub().Submit(rank_, transfer, out);
  }
  void Abort(const Status& reason) noexcept override { run_.End(rank_, reason); }

 private:
  ServedRun& run_;
  const int rank_;
  ServedClient client_;
};

inline std::unique_ptr<Communicator> ServedRun::MakeRank(int rank) {
  return std::make_unique<ServedCommunicator>(*this, rank);
}

}  // namespace engine::test
