// Parameters that live at servers, in their simplest form: maps under one mutex, in one process.
// What engine/ext/parameter_server.h says, and nothing faster.
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
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "tests/support/hub_communicator.h"

namespace engine::test {

struct TableSettings {
  int world_size = 2;
  int servers = 0;  // members of their own; 0: the optimizers of the ranks update
  UpdateMode mode = UpdateMode::kSync;
  int32_t staleness = 0;
  int64_t max_delay_us = 0;  // before a push or a pull is carried out
  uint32_t seed = 1;
  // A rank that has failed; called without a lock. May be empty.
  std::function<void(int rank, const Status& status)> on_failure;
};

// The parameters of one run. Thread-safe; pushes and pulls are carried out and end on a thread of
// its own. In an update mode that is not sync, UpdateCall::step is the number of updates, but at
// least the step of the push; a rank that takes the place of another counts from its first push of
// a unit on, and as far as the slowest of the others.
class ParameterTable {
 public:
  explicit ParameterTable(TableSettings settings);
  ~ParameterTable();

  ParameterTraits traits() const { return {settings_.mode, settings_.staleness}; }

  // ParameterClient of `rank`.
  Status Register(int rank, std::span<const ServedUnit> units, Optimizer& optimizer);
  Status Store(int rank, uint64_t key, int32_t state, const float* data);
  Status Load(int rank, uint64_t key, int32_t state, float* data, int64_t timeout_ms);
  Status LastStep(int rank, uint64_t* step);
  Status BeginStep(int rank, const ServedStep& step);

  // kPush and kPull.
  Status Submit(int rank, const Transfer& transfer, Work** out);

  // Fails what `rank` has pending and all that it asks for later; the first reason stays. Nothing
  // of its memory is used afterwards.
  void End(int rank, const Status& reason);
  // Returns when no Work of an ended rank will call back any more. Not from a callback.
  void Drain();
  // A new process in the place of an ended rank, which takes part again once it registers.
  void Revive(int rank);

  // ParameterServer of member `index`.
  Status Serve(int index, Optimizer& optimizer);
  void EndServer(int index, const Status& reason);

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  struct Push {
    std::vector<float> gradient;  // dense
    ServedStep step;
  };
  struct Unit {
    size_t index = 0;
    int64_t count = 0, row = 0;
    std::vector<ServedSpan> spans;
    bool stored = false;
    std::vector<float> value;
    std::vector<std::vector<float>> states;
    std::map<int, uint64_t> submitted, pushed;         // by rank: the last step
    std::map<uint64_t, std::map<int, Push>> gathered;  // kSync: by step and rank
    std::deque<Push> queue;                            // else: in order of arrival
    uint64_t updated = 0;                              // UpdateCall::step of the last update
    std::set<int> joining;                             // in the place of others, no push yet
    std::map<int, uint64_t> ahead;                     // by rank: added to its steps
  };
  struct Rank {
    Optimizer* optimizer = nullptr;  // set: it has registered
    bool gone = false;               // until the one in its place registers
    Status ended;
    ServedStep step{.step = 0};
  };
  struct Server {
    Optimizer* optimizer = nullptr;  // set: it serves
    Status ended;
  };
  struct Request {
    int rank = 0;
    Transfer transfer;
    ServedStep step;
    HubWork* work = nullptr;
    Clock::time_point due, deadline;
  };
  // Whether something may go on; else whom it waits for (-1: nobody in particular), or why it
  // never will.
  struct Readiness {
    bool ready = false;
    int waits_for = -1;
    Status error;
  };

  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  Status CheckAlive(int rank);
  Result<Unit*> Find(int rank, uint64_t key);
  Result<std::vector<float>*> Array(int rank, uint64_t key, int32_t state);
  Status CheckTransfer(int rank, const Unit& unit, const Transfer& transfer);
  Readiness ReadyToRead(int rank, const Unit& unit, uint64_t step);
  uint64_t Progress(int rank, const Unit& unit) const;
  void Join(int rank, Unit& unit, uint64_t step);

  void Loop();
  std::optional<Status> Try(const Request& request, Clock::time_point now);
  Status DoPush(const Request& request, Unit& unit);
  void DoPull(const Request& request, const Unit& unit);
  Status Settle(Unit& unit);
  Status SettleAll();
  Optimizer* Updater(const Unit& unit);
  Status Update(Unit& unit, Optimizer& optimizer, const std::vector<float>& gradient,
                const ServedStep& step);
  Status LostServer() const;

  const TableSettings settings_;
  std::mt19937 random_;  // guarded by mutex_, as all below
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  std::vector<Server> servers_;
  std::map<uint64_t, Unit> units_;
  bool registered_ = false;
  uint64_t first_step_ = 0;  // of the run; 0: none has begun
  std::list<Request> requests_;
  std::deque<HubWork> works_;
  bool busy_ = false;  // the thread ends what it has taken from requests_
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace engine::test
