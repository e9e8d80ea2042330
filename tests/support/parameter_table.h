// Parameters that live at servers, for tests of what runs on ranks: maps under one mutex, in one
// process. What engine/ext/parameter_server.h says of ranks that keep to it, and no checks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "tests/support/hub_communicator.h"

namespace engine::test {

struct TableSettings {
  int world_size = 2;
  UpdateMode mode = UpdateMode::kSync;
  int32_t staleness = 0;
  int64_t max_delay_us = 0;  // before a push or a pull is carried out
  uint32_t seed = 1;
  // A rank that has failed; called without a lock. May be empty.
  std::function<void(int rank, const Status& status)> on_failure;
};

// The parameters of one run, which the optimizer of the first rank that registers updates.
// Thread-safe; pushes and pulls are carried out and end on a thread of its own.
class ParameterTable {
 public:
  explicit ParameterTable(TableSettings settings);
  ~ParameterTable();

  ParameterTraits traits() const { return {settings_.mode, settings_.staleness}; }

  // ParameterClient of `rank`.
  Status Register(int rank, std::span<const ServedBucket> buckets, Optimizer& optimizer);
  Status Store(int rank, uint64_t key, int32_t state, const float* data);
  Status Load(int rank, uint64_t key, int32_t state, float* data, int64_t timeout_ms);
  Status LastStep(int rank, uint64_t* step);
  void SelectRows(int rank, uint64_t key, std::span<const int32_t> rows);
  Status BeginStep(int rank, const ServedStep& step);

  // kPush and kPull.
  Status Submit(int rank, const Transfer& transfer, Work** out);

  // Fails what `rank` has pending and all that it asks for later; the first reason stays. Nothing
  // of its memory is used afterwards.
  void End(int rank, const Status& reason);
  // Returns when no Work of an ended rank will call back any more. Not from a callback.
  void Drain();

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  struct Push {
    std::vector<float> gradient;  // dense
    ServedStep step;
  };
  struct Bucket {
    int64_t count = 0, row = 0;
    std::vector<ServedSpan> spans;
    bool stored = false;
    std::vector<float> value;
    std::vector<std::vector<float>> states;
    std::map<int, uint64_t> pushed;                    // by rank: the last step
    std::map<uint64_t, std::map<int, Push>> gathered;  // kSync: by step and rank
    uint64_t updated = 0;                              // UpdateCall::step of the last update
  };
  struct Rank {
    Status ended;
    ServedStep step{.step = 0};
    std::map<uint64_t, std::span<const int32_t>> rows;  // by bucket: of its next transfer
  };
  struct Request {
    int rank = 0;
    Transfer transfer;
    std::optional<std::span<const int32_t>> rows;  // nothing: the whole bucket
    ServedStep step;
    HubWork* work = nullptr;
    Clock::time_point due, deadline;
  };

  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  std::vector<float>& Array(uint64_t key, int32_t state);
  bool IsReady(int rank, const Bucket& bucket, uint64_t step) const;
  uint64_t Progress(int rank, const Bucket& bucket) const;

  void Loop();
  // Calls copy(first element, number of elements) for what a request moves.
  template <typename Copy>
  void ForEachPart(const Request& request, const Copy& copy) const;
  std::optional<Status> Try(const Request& request, Clock::time_point now);
  Status Apply(const Request& push, Bucket& bucket);
  Status Update(Bucket& bucket, const Push& push);

  const TableSettings settings_;
  std::mt19937 random_;  // guarded by mutex_, as all below
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  std::map<uint64_t, Bucket> buckets_;
  Optimizer* optimizer_ = nullptr;
  uint64_t first_step_ = 0;  // of the run; 0: none has begun
  std::list<Request> requests_;
  std::deque<HubWork> works_;
  bool busy_ = false;  // the thread ends what it has taken from requests_
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace engine::test
